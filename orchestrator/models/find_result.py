"""Finds the result of a finished cell by the cell's id, or by the beginning of the id."""

import difflib
import re
from collections.abc import Iterable

from orchestrator.store import Store
from orchestrator.store.results import Result
from orchestrator.util.errors import UserError, one_line, short_repr, shorten
from orchestrator.util.units import listed

NEAREST = 3
"""Number of similar ids that a message suggests when an id is unknown."""


def find_result(store: Store, wanted: str) -> Result:
    """Return the result of the finished cell whose id is ``wanted``, or the only one whose id begins with it.

    Raises ``UserError`` for an unknown id (naming the nearest), an ambiguous prefix, a failed cell and an unreadable
    result.
    """
    ids = sorted(store.result_ids())
    found = [wanted] if wanted in ids else [name for name in ids if name.startswith(wanted)]
    if not found:
        if failure := store.read_failure(wanted):
            what = f"{wanted} has no result, because it failed: {one_line(failure.error)}"
            hint = "run the cell's grid with --retry-failed, which runs failed cells again"
            raise UserError(what, where=store.url, hint=hint)
        near = "\n  ".join(nearest_ids(wanted, ids))
        hint = f"the nearest are\n  {near}" if near else "the store has no results"
        hint += "\n  `cells GRID` lists the cells of a grid"
        raise UserError(f"unknown cell {short_repr(wanted)}", where=store.url, hint=hint)
    if len(found) > 1:
        hint = "give more of the id:\n  " + listed(found, 8, "\n  ")
        raise UserError(f"the ids of {len(found)} cells begin with {wanted!r}", where=store.url, hint=hint)
    try:
        return store.read_result(found[0])
    except ValueError as error:
        raise UserError(f"the result of {found[0]} cannot be read: {error}", hint="run the cell's grid again") from None


def nearest_ids(wanted: str, ids: Iterable[str]) -> list[str]:
    """Return the :data:`NEAREST` ids that are most similar to ``wanted``, the most similar first.

    An id is more similar if it shares more words (``bolt``, ``k16``, a dataset) with ``wanted``. Among ids that share
    equally many words, the more similar text comes first.
    """
    wanted = shorten(wanted)
    words = set(_words(wanted))
    shared = {name: len(words.intersection(_words(name))) for name in ids}
    least = min(sorted(shared.values())[-NEAREST:], default=0)
    matcher, near = difflib.SequenceMatcher(b=wanted), {}
    for name, count in shared.items():
        if count >= least:
            matcher.set_seq1(name)
            near[name] = matcher.ratio()
    return sorted(near, key=lambda name: (-shared[name], -near[name], name))[:NEAREST]


def _words(name: str) -> list[str]:
    """Return the parts of an id: track, backbone, dataset, k, method, seed, fingerprint."""
    return re.split(r"--|[.\s]+", name.lower())
