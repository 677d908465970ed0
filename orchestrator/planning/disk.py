"""Whether the artifacts that a plan builds fit on the store's disk and into the user's budget."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

from orchestrator.planning.plan import Plan
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_bytes

SHOWN_KINDS = 4


def free_bytes(store: Store) -> int | None:
    """Free bytes on the disk where a local store is or will be; ``None`` for a remote store."""
    if not store.files.is_local:
        return None
    folder = Path(store.files.root).absolute()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def bytes_to_build(plan: Plan) -> int:
    """About how many bytes the missing artifacts will take."""
    return sum(planned.bytes for planned in plan.artifacts if not planned.built)


def disk_line(plan: Plan, store: Store) -> str:
    """The size of the artifacts to build, and the free space."""
    free = free_bytes(store)
    space = "free space unknown: the store is remote" if free is None else f"{human_bytes(free)} free"
    return f"disk: about {human_bytes(bytes_to_build(plan))} to build, {space}"


def check_disk_space(plan: Plan, store: Store, budget: int | None = None) -> None:
    """Raise ``UserError`` when the artifacts to build take more bytes than are free, or than ``budget``.

    The error lists the kinds of artifacts that take most, and what would make them smaller.
    """
    needed, free = bytes_to_build(plan), free_bytes(store)
    if budget is not None and needed > budget:
        raise _too_large(plan, f"more than the budget of {human_bytes(budget)}", "--disk-budget")
    if free is not None and needed > free:
        raise _too_large(plan, f"more than the {human_bytes(free)} that are free", store.url)


def _too_large(plan: Plan, limit: str, where: str) -> UserError:
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for planned in plan.artifacts:
        if not planned.built:
            sizes[planned.spec.title, planned.spec.shrink_hint].append(planned.bytes)
    largest = sorted(sizes.items(), key=lambda item: -sum(item[1]))[:SHOWN_KINDS]
    lines = [f"{human_bytes(sum(each)):>10}  {len(each)} {title}: {hint}" for (title, hint), each in largest]
    return UserError(
        f"the artifacts to build take about {human_bytes(bytes_to_build(plan))}, {limit}; nothing was started\n"
        + "\n".join(lines),
        where=where,
        hint="--only and --set make the plan smaller, --store puts it on another disk",
    )
