"""The output of ``plan --json``: a plan as plain data, for programs. ``docs/automation.md`` describes the fields."""

from __future__ import annotations

from collections import Counter
from typing import Any

from orchestrator.planning.checks import bytes_to_build, free_bytes, plan_problems
from orchestrator.planning.estimate import gpu_hours
from orchestrator.planning.gpu_speeds import GpuKind
from orchestrator.planning.plan import Plan, raced_plan
from orchestrator.store import Store


def plan_record(plan: Plan, store: Store, disk_budget: int | None, gpu: GpuKind | None) -> dict[str, Any]:
    """Return the counts of cells and artifacts, their bytes, and the problems that keep the grid from running here."""
    groups = Counter((cell.track, cell.backbone.name, plan.grid.label(cell)) for cell in plan.cells)
    to_do = Counter((cell.track, cell.backbone.name, plan.grid.label(cell)) for cell in plan.todo)
    kinds = Counter(spec.title for spec in plan.artifacts)
    missing = {kind: [s.size_bytes(plan.catalog) for s in plan.missing if s.title == kind] for kind in kinds}
    return {
        "grid": plan.grid.name,
        "title": plan.grid.title,
        "store": store.url,
        "cells": {
            "all": len(plan.cells),
            "finished": len(plan.done),
            "failed": len(plan.failed),
            "to_do": len(plan.todo),
        },
        "damaged": list(plan.damaged),
        "methods": [
            {"track": track, "backbone": backbone, "method": method, "cells": count, "to_do": to_do[group]}
            for group, count in groups.items()
            for track, backbone, method in (group,)
        ],
        "artifacts": [
            {"kind": kind, "all": count, "to_build": len(missing[kind]), "bytes": sum(missing[kind])}
            for kind, count in kinds.items()
        ],
        "bytes_to_build": bytes_to_build(plan),
        "bytes_free": free_bytes(store),
        "gpu_hours": None if gpu is None else dict(gpu_hours(plan, gpu)),
        "problems": [str(problem) for problem in plan_problems(plan, store, disk_budget)],
    }


def race_record(plan: Plan, store: Store, gpu: GpuKind | None) -> dict[str, Any]:
    """Return the number of places that have a race, and the fewest cells and GPU-hours that all these races take.

    A place is a track, protocol, backbone, domain and k.
    """
    first = raced_plan(plan, store)
    return {
        "places": len(first.places),
        "least_to_do": len(first.todo),
        "least_gpu_hours": None if gpu is None else dict(gpu_hours(first, gpu)),
    }
