"""Display names of methods on pages, in figures and on the terminal, such as ``LP++`` or ``BOLT (rank 3)``."""

import re
from collections import Counter
from collections.abc import Mapping

_SHORT_SETTINGS = {"top_k": "rank"}
"""Name of a setting -> its name in papers and in display names."""


def display_names(method_names: Mapping[str, str]) -> dict[str, str]:
    """Return the display name of every label: the method's title, and in brackets how a variant differs.

    ``method_names``: label -> name of the method.

    Different labels have different display names. Labels of methods that are not registered stay as they are.
    """
    names = {label: _display_name(label, method) for label, method in method_names.items()}
    counts = Counter(names.values())
    return {label: name if counts[name] == 1 else label for label, name in names.items()}


def summaries(method_names: Mapping[str, str]) -> dict[str, str]:
    """Return the one-line summary of every label's method. Methods that are not registered have none."""
    from bolt.methods import METHODS  # imports torch

    registered = {label: METHODS[method] for label, method in method_names.items() if method in METHODS}
    return {label: method.summary for label, method in registered.items() if method.summary}


def title_of(method: str) -> str:
    """Return the title of a method, or its name if it is not registered."""
    from bolt.methods import METHODS  # imports torch

    return METHODS[method].title if method in METHODS else method


def _display_name(label: str, method: str) -> str:
    from bolt.methods import METHODS  # imports torch

    if method not in METHODS:
        return label
    title = METHODS[method].title
    # Labels that would otherwise be equal end in " [leave_one_out]" or " #2".
    plain, ending = re.fullmatch(r"(.*?)((?: \[[^\]]*\]| #\d+)*)", label, re.DOTALL).groups()  # type: ignore[union-attr]
    if plain == method:
        return title + ending
    if title.casefold().startswith(plain.casefold()) or plain.startswith(title):
        return label  # the grid's label contains the title already
    rest = plain.removeprefix(method)
    if rest != plain and not rest[0].isalnum():
        variant = _settings_text(rest[1:-1]) if rest.startswith("[") else rest.lstrip("_- ").replace("_", " ")
    else:
        variant = plain.replace("_", " ")
    if title.endswith(")"):
        return f"{title[:-1]}; {variant}){ending}"
    return f"{title} ({variant}){ending}"


def _settings_text(settings: str) -> str:
    """Return ``rank 3, learning rate 0.01`` for ``top_k=3,learning_rate=0.01``."""
    parts = (setting.partition("=") for setting in settings.split(","))
    return ", ".join(f"{_SHORT_SETTINGS.get(key, key.replace('_', ' '))} {value}".rstrip() for key, _, value in parts)
