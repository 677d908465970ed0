"""Measures the candidates on held-out folds of the training images, as far as the time allows.

Each fold of each candidate is an artifact of the store, so a killed run continues with the next fold. A candidate is
left out if its estimated time exceeds the time left. The estimate uses the measured time of one image on this machine.
After each fold, the time of the remaining folds is estimated again. A candidate that reads a single frozen feature of
each image is cheap and is always started.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.console import Console

from bolt.methods.common.candidates import Candidate
from orchestrator.adapt.held_out_fold import HeldOut, HeldOutFold
from orchestrator.adapt.own_images import OwnImages
from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec
from orchestrator.core.cell import BackboneRef, Cell
from orchestrator.core.events import TaskEvent
from orchestrator.execution.run import build_artifacts
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError
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
    def is_measured(self) -> bool:
        """Whether all folds were predicted."""
        return self.held_out is not None

    @property
    def accuracy(self) -> float:
        """Accuracy on the held-out images in per cent."""
        return 100 * float(self.held_out.correct_N.mean()) if self.held_out is not None else float("nan")

    @property
    def outcome(self) -> str:
        """The candidate's accuracy and time, or why the candidate was left out."""
        if self.left_out:
            return f"not tried: {self.left_out}"
        return f"{self.accuracy:5.1f} %   {human_duration(self.seconds)}"


def measure_candidates(
    planned: Sequence[Trial], images: OwnImages, minutes: float, loaded: ArtifactCache, console: Console
) -> list[Trial]:
    """Measure the candidates on held-out folds, the cheapest first, and print the outcome of each.

    If no image can be held out, no candidate is measured: only the inputs of the first candidate that fits into the
    time are built.

    Args:
        planned: the trials to make. The returned trials have this order too.
        minutes: the time for all candidates and for building their inputs.

    Raises ``UserError`` if an artifact cannot be built, or if no candidate could be measured.
    """
    trials = [*planned]
    rate, left = _gflops_per_second(trials[0].cell.backbone, loaded), 60 * minutes
    width = max(28, *(len(trial.text) for trial in trials))

    def estimate(number: int) -> float:
        return _gflop(trials[number], images, loaded) / rate

    numbers = range(len(trials))
    for number in sorted(numbers, key=estimate) if images.folds else numbers:
        trial, cheap, seconds = trials[number], _is_cheap(trials[number].candidate), estimate(number)
        if seconds > left and not cheap:
            why = f"an estimated {human_duration(seconds)} did not fit into the time left"
            trials[number] = replace(trial, left_out=why)
        else:
            left -= build(trial.inputs, loaded, console, f"{trial.text}: preparing")
            if not images.folds:
                return trials
            allowed = max(60 * minutes, CHEAP_SECONDS) if cheap else left
            trials[number] = _measured(trial, images, allowed, loaded, console)
            left -= trials[number].seconds
        print_line(f"  {trial.text:<{width}} {trials[number].outcome}", console)
    if not any(trial.is_measured for trial in trials):
        what = "no candidate could be measured"
        raise UserError(what, where="--minutes", hint="give more minutes or other --methods")
    return trials


def _measured(trial: Trial, images: OwnImages, left: float, loaded: ArtifactCache, console: Console) -> Trial:
    """Build and read the folds one after the other; return the trial with its predictions.

    If the candidate fails, or would need more than ``left`` seconds, the trial has no predictions. It then says why the
    candidate is left out.
    """
    folds = images.folds
    found: list[HeldOut] = []
    spent = 0.0
    for fold in range(folds):
        spec = HeldOutFold(trial.cell, fold, folds, images.copies)
        try:
            build([spec], loaded, console, f"{trial.text}: fold {fold + 1} of {folds}")
        except UserError as error:
            return replace(trial, seconds=spent, left_out=str(error).splitlines()[0])
        predicted, seconds = loaded.get(spec)
        found.append(predicted)
        spent += seconds
        remaining = seconds * (folds - fold)  # for the folds left, and for adapting to all images at the end
        if spent + remaining > left and fold + 1 < folds:
            more = f"{human_duration(remaining)} more did not fit into the time left"
            why = f"a fold took {human_duration(seconds)}, and {more}"
            return replace(trial, seconds=spent, left_out=why)
    order_N = np.argsort(np.concatenate([fold.rows_N for fold in found]))
    held_out = HeldOut._make(np.concatenate(parts)[order_N] for parts in zip(*found, strict=True))
    return replace(trial, held_out=held_out, seconds=spent)


def build(specs: Sequence[ArtifactSpec], loaded: ArtifactCache, console: Console, what: str) -> float:
    """Build the artifacts that the store lacks, and return the seconds. Raises ``UserError`` if a build fails."""
    started, store = time.perf_counter(), loaded.store
    missing = [spec for spec in specs if not store.is_intact(spec.address, spec.identity)]
    titles = {spec.address: spec.title for spec in missing}

    def show(event: TaskEvent) -> None:
        if event.kind == "started":
            status.update(f"{what}, {titles[event.key]}")

    store.remove_failures([*titles])
    with console.status(what) as status:
        failed = build_artifacts(missing, loaded.settings, store, show)
    for address, event in failed.items():
        raise UserError(f"{titles[address]} could not be built: {event.error}", where=address)
    return time.perf_counter() - started


def _gflop(trial: Trial, images: OwnImages, loaded: ArtifactCache) -> float:
    """Return the estimated operations, in units of 10^9, of all folds of a candidate and of its missing inputs."""
    method, passes = trial.candidate.method, trial.candidate.tower_passes(images.total)
    per_fold = passes.forward + method.training_forwards * passes.training + images.total * method.changes_tower
    lacking = [spec for spec in trial.inputs if loaded.store.artifact(spec.address, spec.identity) is None]
    artifacts = sum(spec.gflops(loaded.catalog) for spec in lacking)
    gflops_per_image = loaded.catalog.backbone(trial.cell.backbone.name).gflops_per_image
    return per_fold * gflops_per_image * max(1, images.folds) + artifacts


def _is_cheap(candidate: Candidate) -> bool:
    """Return whether a candidate reads only one frozen feature of each image."""
    passes, views = candidate.tower_passes(1), candidate.method.support_feature_views(candidate.settings)
    return not (passes.forward or passes.training or passes.text_training or views or candidate.uses_sources)


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
