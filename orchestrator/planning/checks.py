"""Checks that a plan can run here: its inputs are on this machine, and its artifacts fit on the store's disk."""

import shlex
import shutil
from collections import defaultdict
from functools import partial
from pathlib import Path

from orchestrator.catalog import missing_data, missing_weights
from orchestrator.catalog.dataset_entry import DASSL_PAGE
from orchestrator.catalog.location import grids_folder
from orchestrator.datasets.changes import changed_data
from orchestrator.datasets.state import other_data
from orchestrator.planning.plan import Plan
from orchestrator.store import Store
from orchestrator.util.atomic_files import nearest_existing
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_bytes, listed

SHOWN = 4
SHOWN_NAMES = 8


def check_inputs(plan: Plan) -> None:
    """Raise ``UserError`` if inputs of the plan are missing. The message names them and says how to get them.

    A dataset that is not on this machine counts as missing only if artifacts must still be built from its images. A
    folder or table of images whose content has changed is always an error: results would belong to other images.
    """
    grid, catalog, root = plan.grid, plan.catalog, plan.data_root
    needed = sorted({spec.opened_dataset for spec in plan.missing} - {""})
    found = {name: missing_weights(catalog.backbone(name)) for name in sorted({c.backbone.name for c in plan.todo})}
    found |= {name: missing_data(catalog.dataset(name), root) for name in needed}
    found |= {
        name: changed_data(entry, root, catalog.files["datasets", name])
        for name, entry in grid.datasets.items()
        if not found.get(name)
    }
    found |= {name: other_data(catalog.dataset(name), root) for name in needed if not found.get(name)}
    for spec in plan.missing:
        if not found.get(spec.opened_dataset) and (error := spec.missing_input(catalog, root)):
            found.setdefault(f"{spec.title} of {spec.opened_dataset or spec.address}", error)
    missing = {name: error for name, error in found.items() if error is not None}

    # Below a data root, the user's own datasets lack different things, so each has its own error.
    datasets = {name: entry for name in missing if (entry := grid.datasets.get(name)) and not (root and entry.is_own)}
    errors = [error for name, error in missing.items() if len(datasets) == 1 or name not in datasets]
    if len(datasets) > 1:  # one error with the cause, the names of the datasets and a command that fetches them
        by_hand = [name for name, entry in datasets.items() if root is not None and entry.route.kind == "dassl"]
        fetched = [name for name, entry in datasets.items() if entry.is_prepared]
        cause = f"are not in {root}" if root else "are missing because no data root is given"
        shipped = (grids_folder() / f"{grid.name}.yaml").is_file()
        what = f"--grid {grid.name}" if shipped and len(fetched) > SHOWN_NAMES else " ".join(fetched)
        hint = [", ".join(name for name in datasets if name not in by_hand)]
        if fetched:
            hint.append(f"python -m orchestrator data prepare {what} --data-root {shlex.quote(str(root or 'PATH'))}")
        if root is None:
            hint.append(f"give --data-root PATH to this command{' too' * bool(fetched)}, or set BOLT_DATA=PATH")
        elif by_hand:
            lines = [missing[name].what.removeprefix("dataset ").replace(" is not there", "") for name in by_hand]
            here = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
            hint += [line.replace(f"{root}/", "") for line in lines]
            hint.append(f"CoOp's instructions say where to get each dataset and where to put it: {DASSL_PAGE}")
            hint.append(f"{root} holds {listed(here, SHOWN_NAMES)}" if here else f"{root} holds no folder")
        what = f"{len(datasets)} datasets {cause}; nothing was started"
        errors.insert(0, UserError(what, hint="\n  ".join(filter(None, hint))))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        shown = listed([str(error) for error in errors], SHOWN, "\n- ")
        raise UserError(f"{len(missing)} inputs are missing; nothing was started:\n- {shown}")


def free_bytes(store: Store) -> int | None:
    """Return the free bytes on the disk of a local store, which need not exist yet; ``None`` for a remote store."""
    if not store.files.is_local:
        return None
    return shutil.disk_usage(nearest_existing(Path(store.files.root))).free


def bytes_to_build(plan: Plan) -> int:
    """Return the estimated bytes of the missing artifacts."""
    return sum(spec.size_bytes(plan.catalog) for spec in plan.missing)


def disk_line(plan: Plan, store: Store) -> str:
    """Return the size of the artifacts to build, and the free space."""
    free = free_bytes(store)
    space = "free space unknown: the store is remote" if free is None else f"{human_bytes(free)} free"
    return f"disk: about {human_bytes(bytes_to_build(plan))} to build, {space}"


def check_disk_space(plan: Plan, store: Store, budget: int | None = None) -> None:
    """Raise ``UserError`` when the artifacts to build take more bytes than are free, or than ``budget``."""
    needed, free = bytes_to_build(plan), free_bytes(store)
    if budget is not None and needed > budget:
        limit, where = f"more than the budget of {human_bytes(budget)}", "--disk-budget"
    elif free is not None and needed > free:
        limit, where = f"more than the {human_bytes(free)} that are free", store.url
    else:
        return
    sizes = defaultdict[tuple[str, str], list[int]](list)
    for spec in plan.missing:
        sizes[spec.title, spec.shrink_hint].append(spec.size_bytes(plan.catalog))
    largest = sorted(sizes.items(), key=lambda item: -sum(item[1]))[:SHOWN]
    lines = [f"{human_bytes(sum(each)):>10}  {title} ({len(each)}): {hint}" for (title, hint), each in largest]
    what = f"the artifacts to build take about {human_bytes(needed)}, {limit}; nothing was started"
    hint = "--only and --set make the plan smaller; --store can name a folder on another disk"
    raise UserError("\n".join([what, *lines]), where=where, hint=hint)


def plan_problems(plan: Plan, store: Store, budget: int | None) -> list[UserError]:
    """Return the errors that keep the plan from running: too little space, and missing inputs."""
    found = []
    for check in (partial(check_disk_space, plan, store, budget), partial(check_inputs, plan)):
        try:
            check()
        except UserError as error:
            found.append(error)
    return found
