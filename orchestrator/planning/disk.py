"""Whether what a plan has to build fits: on the store's disk, and into what the user gives it."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

from orchestrator.planning.plan import Plan
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_bytes

SHOWN = 4


def free_bytes(store: Store) -> int | None:
    """Free space where a local store is or will be; ``None`` for a remote one."""
    if not store.files.is_local:
        return None
    folder = Path(store.files.root).absolute()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def room_line(plan: Plan, store: Store) -> str:
    """What is to be built, and the space there is for it."""
    free = free_bytes(store)
    return f"disk: about {human_bytes(to_build(plan))} to build, " + (
        f"{human_bytes(free)} free" if free is not None else "free space unknown: the store is remote"
    )


def to_build(plan: Plan) -> int:
    """About how many bytes the missing artifacts will take."""
    return sum(planned.bytes for planned in plan.artifacts if not planned.built)


def check_room(plan: Plan, store: Store, budget: int | None = None) -> None:
    """Raise ``UserError`` when what is to be built takes more than is free, or than ``budget`` bytes.

    It lists what takes most, and what would make it less.
    """
    needed, free = to_build(plan), free_bytes(store)
    if budget is not None and needed > budget:
        raise _too_little(plan, f"more than the {human_bytes(budget)} it may", "--disk-budget")
    if free is not None and needed > free:
        raise _too_little(plan, f"more than the {human_bytes(free)} that are free", store.url)


def _too_little(plan: Plan, limit: str, where: str) -> UserError:
    totals: dict[tuple[str, str], list[int]] = defaultdict(list)
    for planned in plan.artifacts:
        if not planned.built:
            totals[planned.spec.title, planned.spec.shrink_hint].append(planned.bytes)
    largest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:SHOWN]
    lines = [f"{human_bytes(sum(sizes)):>10}  {len(sizes)} {title}: {hint}" for (title, hint), sizes in largest]
    return UserError(
        f"what is still to be built takes about {human_bytes(to_build(plan))}, {limit}; nothing was started\n"
        + "\n".join(lines),
        where=where,
        hint="--only and --set plan less, --store keeps it elsewhere",
    )
