"""Measures the candidates on held-out folds of the training images, as far as the time allows.

Each fold of each candidate is an artifact of the store: a killed run continues with the next one. A candidate is left
out if its estimated time, or the time of its first fold times the number of folds, is more than what is left. The
estimate rests on how long this machine takes for an image. Candidates that read one feature an image always run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from bolt.methods.common.candidates import Candidate
from orchestrator.adapt.held_out_fold import HeldOut, HeldOutFold
from orchestrator.adapt.own_images import OwnImages
from orchestrator.artifacts.features import TestFeatures
from orchestrator.artifacts.required import required_artifacts
from orchestrator.artifacts.spec import ArtifactSpec, artifact_cache
from orchestrator.core.cell import Cell
from orchestrator.core.events import TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution.run import build_artifacts
from orchestrator.planning.plan import Plan
from orchestrator.store import Store
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_duration

CHEAP_SECONDS = 60.0
"""What a candidate that always runs may take, however little time there is."""


@dataclass(frozen=True)
class Trial:
    """A candidate on the held-out folds.

    Attributes:
        cell: the candidate, adapted to all training images.
        held_out: what it predicted for each image of the support while it was held out; ``None`` if it was not
            measured.
        seconds: how long all folds took, without the features that candidates share.
        left_out: why it was not measured, else empty.
    """

    candidate: Candidate
    cell: Cell
    held_out: HeldOut | None = None
    seconds: float = 0.0
    left_out: str = ""

    @property
    def text(self) -> str:
        """The candidate as it was written."""
        return self.candidate.text

    @property
    def is_measured(self) -> bool:
        """Whether all folds were predicted."""
        return self.held_out is not None

    @property
    def accuracy(self) -> float:
        """Accuracy on the held-out images in per cent."""
        return 100 * float(self.held_out.correct_N.mean()) if self.held_out is not None else float("nan")

    def correct_of(self, repeated: Sequence[int]) -> NDArray[np.bool_] | None:
        """Whether each picture was predicted correctly, without the ``repeated`` images; ``None`` if not measured."""
        if self.held_out is None:
            return None
        return self.held_out.scores_without(repeated)[1]


def measure_candidates(
    candidates: Sequence[Candidate], plan: Plan, images: OwnImages, minutes: float, console: Console
) -> list[Trial]:
    """Measure the candidates on held-out folds, the cheapest first, and print what came out of each.

    If nothing can be held out, nothing is measured, and what the first candidate reads that fits the time is built.

    Args:
        plan: its cells are the candidates, in their order.
        minutes: what the candidates may take, with the artifacts that they read.

    Raises ``UserError`` if an artifact cannot be built, or if no candidate could be measured.
    """
    folds, settings = images.folds, images.settings
    trials = [Trial(candidate, cell) for candidate, cell in zip(candidates, plan.cells, strict=True)]
    width = max(28, *(len(trial.text) for trial in trials))
    left, rate = 60 * minutes, _gflops_per_second(plan, settings)
    by_cost = sorted(range(len(trials)), key=lambda number: _gflop(trials[number], plan, folds, settings))
    for number in by_cost if folds else range(len(trials)):
        trial = trials[number]
        estimated = _gflop(trial, plan, folds, settings) / rate
        if estimated > left and not _is_cheap(trial.candidate):
            why = f"an estimated {human_duration(estimated)} did not fit into the time left"
            trial = replace(trial, left_out=why)
        else:
            left -= build(inputs_of(trial.cell, plan), settings, console, f"{trial.text}: preparing")
            if folds:
                allowed = max(60 * minutes, CHEAP_SECONDS) if _is_cheap(trial.candidate) else left
                trial = _measured(trial, images, allowed, console)
                left -= trial.seconds
        trials[number] = trial
        if not folds and not trial.left_out:
            break
        if trial.left_out:
            print_line(f"  {trial.text:<{width}} not tried: {trial.left_out}", console)
        elif trial.is_measured:
            print_line(f"  {trial.text:<{width}} {trial.accuracy:5.1f} %   {human_duration(trial.seconds)}", console)
    if folds and not any(trial.is_measured for trial in trials):
        what = "no candidate could be measured"
        raise UserError(what, where="--minutes", hint="give more minutes or other --methods")
    return trials


def _measured(trial: Trial, images: OwnImages, left: float, console: Console) -> Trial:
    """Build the folds one after the other, and read them. A candidate that fails or is too slow is left out."""
    folds, settings = images.folds, images.settings
    found: list[HeldOut] = []
    spent = 0.0
    for fold in range(folds):
        spec = HeldOutFold(trial.cell, fold, folds, images.copies)
        try:
            build([spec], settings, console, f"{trial.text}: fold {fold + 1} of {folds}")
        except UserError as error:
            return replace(trial, seconds=spent, left_out=str(error).splitlines()[0])
        predicted, seconds = artifact_cache(settings).get(spec)
        found.append(predicted)
        spent += seconds
        remaining = seconds * (folds - fold)  # the other folds, and all images at the end
        if spent + remaining > left and fold + 1 < folds:
            why = f"a fold took {human_duration(seconds)}, and {human_duration(remaining)} more did not fit"
            return replace(trial, seconds=spent, left_out=why)
    order_N = np.argsort(np.concatenate([fold.rows_N for fold in found]))
    held_out = HeldOut._make(np.concatenate(parts)[order_N] for parts in zip(*found, strict=True))
    return replace(trial, held_out=held_out, seconds=spent)


def build(specs: Sequence[ArtifactSpec], settings: RunSettings, console: Console, what: str) -> float:
    """Build those that the store lacks; return the seconds. Raises ``UserError`` with one that cannot be built."""
    started, store = time.perf_counter(), Store(settings.store_url)
    missing = [spec for spec in specs if not store.is_intact(spec.address, spec.identity)]
    titles = {spec.address: spec.title for spec in missing}

    def show(event: TaskEvent) -> None:
        if event.kind == "started":
            status.update(f"{what}, {titles[event.key]}")

    store.remove_failures([spec.address for spec in missing])
    with console.status(what) as status:
        failed = build_artifacts(missing, settings, store, show)
    for address, event in failed.items():
        raise UserError(f"{titles[address]} could not be built: {event.error}", where=address)
    return time.perf_counter() - started


def inputs_of(cell: Cell, plan: Plan) -> list[ArtifactSpec]:
    """Return the artifacts that a candidate reads, without the features of the user's own test part.

    Those of a source's test part stay: building a source notes its accuracy.
    """
    needed = required_artifacts([cell], plan.cells, plan.catalog, plan.sources)
    return [spec for spec in needed if not (isinstance(spec, TestFeatures) and spec.dataset == cell.dataset)]


def _gflop(trial: Trial, plan: Plan, folds: int, settings: RunSettings) -> float:
    """10^9 operations of a candidate on all folds and, at the end, on all images, with the artifacts it lacks."""
    store, candidate = Store(settings.store_url), trial.candidate
    size = plan.catalog.dataset(trial.cell.dataset.name).sizes.train
    passes = candidate.tower_passes(size)
    images = (
        passes.forward + candidate.method.training_forwards * passes.training + size * candidate.method.changes_tower
    )
    artifacts = sum(
        spec.gflops(plan.catalog)
        for spec in inputs_of(trial.cell, plan)
        if store.artifact(spec.address, spec.identity) is None
    )
    return images * plan.catalog.backbone(trial.cell.backbone.name).gflops_per_image * max(1, folds) + artifacts


def _is_cheap(candidate: Candidate) -> bool:
    """Whether a candidate reads only one frozen feature of each image."""
    passes, views = candidate.tower_passes(1), candidate.method.support_feature_views(candidate.settings)
    return not (passes.forward or passes.training or passes.text_training or views or candidate.uses_sources)


def _gflops_per_second(plan: Plan, settings: RunSettings) -> float:
    """Time the backbone on a few images."""
    loaded, ref = artifact_cache(settings), plan.cells[0].backbone
    backbone, size = loaded.backbone(ref), loaded.image_size(ref).side

    def seconds(images: int) -> float:
        started = time.perf_counter()
        backbone.encode_images(torch.zeros(images, 3, size, size, dtype=torch.uint8)).cpu()
        return time.perf_counter() - started

    seconds(1)  # the first pass allocates memory
    images = max(1, min(64, int(0.5 / seconds(1))))
    return plan.catalog.backbone(ref.name).gflops_per_image * images / seconds(images)
