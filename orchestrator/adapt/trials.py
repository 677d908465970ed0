"""Plans the trials of the candidates, and measures them on held-out folds, as far as the time allows.

The plan is a small grid with one cell for each candidate.

Each fold of each candidate is an artifact of the store, so a killed run continues with the next fold. A candidate is
left out if its estimated time exceeds the time left. The estimate uses the measured time of one image on this machine.
After each fold, the time of the remaining folds is estimated again. A candidate that reads a single frozen feature of
each image is cheap and is always started.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from bolt.methods.common.candidates import Candidate
from bolt.model.checkpoint_sources import checkpoint_paths
from orchestrator.adapt.held_out_fold import HeldOut, HeldOutFold
from orchestrator.adapt.own_images import OwnImages
from orchestrator.adapt.request import TINY, TINY_FINE_TUNING, Request
from orchestrator.artifacts.features import TestFeatures
from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec
from orchestrator.catalog import load_catalog
from orchestrator.catalog.yaml_files import dump_yaml, read_mapping, write_entries
from orchestrator.core.cell import BackboneRef, Cell
from orchestrator.execution.run import build_missing
from orchestrator.grid import load_grid
from orchestrator.models.adoption import adopt_checkpoints
from orchestrator.planning.plan import Plan, source_models
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError, explained
from orchestrator.util.units import human_duration

CHEAP_SECONDS = 60.0
"""Seconds that a cheap candidate may always take, even if the user gives less time for all candidates."""


@dataclass(frozen=True)
class Trial:
    """A candidate, and its predictions on the held-out folds.

    Attributes:
        cell: the cell that adapts the candidate to all training images.
        inputs: the artifacts that the candidate reads, except the features of the user's test images.
        held_out: the candidate's predictions for the images of all folds; ``None`` if it was not measured.
        seconds: the time of the folds, without the time to build shared features.
        left_out: the reason why the candidate was not measured; otherwise empty.
    """

    candidate: Candidate
    cell: Cell
    inputs: Sequence[ArtifactSpec]
    held_out: HeldOut | None = None
    seconds: float = 0.0
    left_out: str = ""

    @property
    def text(self) -> str:
        """The candidate as the user or the default list writes it."""
        return self.candidate.text

    @property
    def is_cheap(self) -> bool:
        """Whether the candidate reads only one frozen feature of each image."""
        candidate = self.candidate
        passes, views = candidate.tower_passes(1), candidate.method.support_feature_views(candidate.settings)
        return not (passes.forward or passes.training or passes.text_training or views or candidate.uses_sources)

    @property
    def accuracy(self) -> float:
        """Accuracy on the held-out images in per cent."""
        return 100 * float(self.held_out.correct_N.mean()) if self.held_out is not None else float("nan")


def plan_trials(request: Request, images: OwnImages, console: Console) -> list[Trial]:
    """Write the grid of the candidates into the working folder, and return the trial of each candidate, in their order.

    The method of a trial's cell is ``auto``, which here has only this candidate to choose from. If the sources are a
    folder, its checkpoints are adopted first. A trial's inputs include the features of the sources' test images,
    because building a source measures its accuracy. The features of the user's test images are not among the inputs.

    Raises ``UserError`` for a folder without usable checkpoints, and what :func:`orchestrator.grid.load_grid` raises.
    """
    sources = _source_pool(request, images, console)
    labels = [f"{number}: {candidate.text}" for number, candidate in enumerate(request.candidates)]
    block = {
        "track": "fewshot",
        "backbones": [request.backbone.name],
        "datasets": [images.entry.name],
        "shots": [max(images.raw.class_sizes("train"))],
        "seeds": [1],
        "methods": [
            {"auto": {"candidates": [candidate.text], "as": label}}
            for candidate, label in zip(request.candidates, labels, strict=True)
        ],
        **({"sources": dict(sources)} if sources else {}),
    }
    content: dict[str, object] = {
        "title": f"adapt {images.entry.name}",
        "protocol": {"name": "strict", "short_classes": "take_all"},
        "blocks": [block],
    }
    if request.backbone.name == TINY:
        content["fine_tuning"] = TINY_FINE_TUNING
    path = request.work / "grid.yaml"
    path.write_text(dump_yaml(content), encoding="utf-8")
    catalog, root = load_catalog(images.settings.catalog_files), images.settings.data_folder
    grid = load_grid(path, catalog, data_root=root)
    cells = {grid.label(cell): cell for cell in grid.cells}
    plan = Plan(grid, catalog, root, tuple(cells[label] for label in labels), source_models(grid, catalog, root))
    trials = []
    for candidate, cell in zip(request.candidates, plan.cells, strict=True):
        needed = plan.artifacts_of([cell])
        inputs = [spec for spec in needed if not (isinstance(spec, TestFeatures) and spec.dataset == cell.dataset)]
        trials.append(Trial(candidate, cell, inputs))
    return trials


def _source_pool(request: Request, images: OwnImages, console: Console) -> Mapping[str, object] | None:
    """Return the block ``sources`` of the grid; ``None`` if the user gives no sources.

    If the sources are a folder, its checkpoints are first adopted into the working folder's catalog.
    """
    if request.sources is None:
        return None
    folder, files = Path(request.sources), [Path(file) for file in images.settings.catalog_files]
    if not folder.is_dir():
        return {"rule": "leave_one_out", "domain": request.sources}
    of_earlier_runs = read_mapping(files[-1]).get("checkpoints") or {}
    write_entries(files[-1], {"checkpoints": {backbone: {} for backbone in of_earlier_runs}}, replace=True)
    with explained(FileNotFoundError, ValueError, where="--sources"):
        checkpoints = [str(path) for path in checkpoint_paths(folder).values()]
    try:
        say = partial(print_line, console=console)
        datasets = adopt_checkpoints(checkpoints, request.backbone.name, None, files, say=say)
    except UserError as error:
        unnamed = "--dataset" in error.hint
        hint = "name each file after one of the datasets that `data list` shows" if unnamed else error.hint
        raise UserError(error.what, where=f"--sources {error.where}".rstrip(), hint=hint) from None
    return {"rule": "leave_one_out", "datasets": datasets}


def measure_candidates(
    planned: Sequence[Trial], images: OwnImages, minutes: float, loaded: ArtifactCache, console: Console
) -> list[Trial]:
    """Measure the candidates on held-out folds, the cheapest first, and print the outcome of each.

    If no image can be held out, no candidate is measured: only the inputs of the first candidate that fits into the
    time are built.

    Args:
        planned: the trials to make. The returned trials have this order too.
        minutes: the time for all candidates and for building their inputs.

    Raises ``UserError`` if an input cannot be built, or if no candidate could be measured.
    """
    trials, numbers, left = [*planned], range(len(planned)), 60 * minutes
    rate = _gflops_per_second(trials[0].cell.backbone, loaded)
    width = max(28, *(len(trial.text) for trial in trials))

    def estimate(number: int) -> float:
        """Return the estimated seconds of all folds of a candidate and of its missing inputs."""
        trial, method = trials[number], trials[number].candidate.method
        passes = trial.candidate.tower_passes(images.total)
        per_fold = passes.forward + method.training_forwards * passes.training + images.total * method.changes_tower
        lacking = [spec for spec in trial.inputs if loaded.store.artifact(spec.address, spec.identity) is None]
        gflop = sum(spec.gflops(loaded.catalog) for spec in lacking)
        gflop += per_fold * loaded.catalog.backbone(trial.cell.backbone.name).gflops_per_image * max(1, images.folds)
        return gflop / rate

    for number in sorted(numbers, key=estimate) if images.folds else numbers:
        trial, estimated = trials[number], estimate(number)
        found, spent, left_out = list[HeldOut](), 0.0, ""
        if estimated > left and not trial.is_cheap:
            left_out = f"an estimated {human_duration(estimated)} did not fit into the time left"
        else:
            left -= build_missing(trial.inputs, loaded, console, f"{trial.text}: preparing")
            if not images.folds:
                return trials
        allowed = max(60 * minutes, CHEAP_SECONDS) if trial.is_cheap else left
        for fold in range(images.folds) if not left_out else ():
            spec = HeldOutFold(trial.cell, fold, images.folds, images.groups)
            try:
                build_missing([spec], loaded, console, f"{trial.text}: fold {fold + 1} of {images.folds}")
            except UserError as error:
                left_out = str(error).splitlines()[0]
                break
            predicted, seconds = loaded.get(spec)
            found.append(predicted)
            spent += seconds
            remaining = seconds * (images.folds - fold)  # for the folds left, and for adapting to all images at the end
            if spent + remaining > allowed and fold + 1 < images.folds:
                more = f"{human_duration(remaining)} more did not fit into the time left"
                left_out = f"a fold took {human_duration(seconds)}, and {more}"
                break
        held_out = None if left_out else HeldOut.joined(found)
        trials[number] = replace(trial, held_out=held_out, seconds=spent, left_out=left_out)
        left -= spent
        outcome = f"{trials[number].accuracy:5.1f} %   {human_duration(spent)}"
        print_line(f"  {trial.text:<{width}} {f'not tried: {left_out}' if left_out else outcome}", console)
    if not any(trial.held_out for trial in trials):
        what = "no candidate could be measured"
        raise UserError(what, where="--minutes", hint="give more minutes or other --methods")
    return trials


def _gflops_per_second(ref: BackboneRef, loaded: ArtifactCache) -> float:
    """Return the backbone's speed on this machine, in 10^9 operations a second, timed on a few images."""
    backbone, entry = loaded.backbone(ref), loaded.catalog.backbone(ref.name)
    side, gflops = entry.image_size, entry.gflops_per_image

    def seconds(images: int) -> float:
        started = time.perf_counter()
        backbone.encode_images(torch.zeros(images, 3, side, side, dtype=torch.uint8)).cpu()
        return time.perf_counter() - started

    seconds(1)  # the first pass allocates memory
    # On a busy machine, a pass of one image through a small tower is mostly waiting, so several images are timed.
    images = min(64, max(1, int(0.5 / seconds(1)), int(4 / gflops)))
    return gflops * images / min(seconds(images) for _ in range(3))
