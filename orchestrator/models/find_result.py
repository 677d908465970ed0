"""Finds the result of a finished cell by the cell's id, or by the beginning of the id."""

from orchestrator.store import Store
from orchestrator.store.results import Result
from orchestrator.util.errors import UserError, explained, one_line, unknown_name
from orchestrator.util.units import listed


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
        raise unknown_name("cell", wanted, ids, where=store.url, otherwise="`cells GRID` lists the cells of a grid")
    if len(found) > 1:
        hint = "give more of the id:\n  " + listed(found, 8, "\n  ")
        raise UserError(f"the ids of {len(found)} cells begin with {wanted!r}", where=store.url, hint=hint)
    with explained(ValueError, what=f"the result of {found[0]} cannot be read", hint="run the cell's grid again"):
        return store.read_result(found[0])
