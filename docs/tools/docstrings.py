"""A Griffe extension that turns the reStructuredText of docstrings into Markdown: ``:func:`adapt``` becomes code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


class PlainRoles(griffe.Extension):
    """Shows the last part of a role's name as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value).replace("``", "`")
