"""What a race saves, in words: before it starts, while it runs and at its end."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.raced_places import left_out_cells
from orchestrator.core.cell import Cell
from orchestrator.planning.estimate import gpu_hours
from orchestrator.planning.gpu_speeds import GpuKind
from orchestrator.planning.plan import Plan
from orchestrator.util.units import human_duration, pluralize


def race_line(plan: Plan) -> str:
    """Return what the races of a plan have decided so far, and what that saves; nothing without a race."""
    if not plan.raced:
        return ""
    out, methods = sum(len(place.decisions) for place in plan.places), sum(len(place.methods) for place in plan.places)
    saved_ids = left_out_cells(plan.places)
    saved = [cell for cell in plan.cells if cell.id in saved_ids]
    over = sum(place.race.next is None for place in plan.places)
    places = pluralize(len(plan.places), "place")
    return f"race: {out} of {methods} methods out, {over} of {places} over; {_share(plan, saved)} saved"


def race_range(whole: Plan, first: Plan, gpu: GpuKind | None) -> str:
    """Return the least and the most that a race measures, in a sentence.

    Args:
        whole: the plan without a race.
        first: the plan of what the race wants first. It wants no more if that settles every place.
    """
    if not first.places:
        return "a race has nothing to decide: no place has two methods and five datasets"
    if not first.todo:
        return "a race needs nothing more"
    line = f"a race runs between {len(first.todo)} and {pluralize(len(whole.todo), 'cell')}"
    if gpu is not None:
        least, most = gpu_hours(first, gpu), gpu_hours(whole, gpu)
        hours = (f"between {least[p]:,.1f} and {most[p]:,.1f} h in {p}" for p in most)
        line = f"{line}, on one {gpu.title} {', '.join(hours)}"
    return f"{line}; how far it gets with the least depends on how much the methods differ"


def _share(plan: Plan, cells: Sequence[Cell]) -> str:
    """Return how many of the plan's cells these are, their share of all counted operations, and their time.

    The time is that of one worker, by finished cells like them.
    """
    work = [plan.costs.work(cell) for cell in cells]
    of = sum(plan.costs.work(cell).gflop for cell in plan.cells)
    seconds = sum(plan.costs.predict(each) or 0.0 for each in work)
    parts = [f"{sum(each.gflop for each in work) / of:.0%} of their operations"] if of and cells else []
    parts += [f"about {human_duration(seconds)} of one worker"] if seconds else []
    share = f" ({', '.join(parts)})" if parts else ""
    return f"{len(cells)} of {pluralize(len(plan.cells), 'cell')}{share}"
