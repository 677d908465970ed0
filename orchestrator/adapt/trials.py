"""Measures the candidates on held-out folds of the training images, as far as the time allows.

The candidates are the cells of a small grid, each the method ``auto`` with this one candidate, so that sources and
settings are those of any grid. Each fold of each candidate is an artifact of the store: a killed run continues with the
next one. A candidate is left out if its estimated time, or the time of its first fold times the number of folds, is
more than what is left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console

from bolt.methods.auto import FROZEN_CANDIDATES
from bolt.methods.common.candidates import Candidate, parse_candidate
from orchestrator.adapt.held_out_fold import HeldOutFold
from orchestrator.adapt.own_images import OwnImages
from orchestrator.adapt.request import Request
from orchestrator.artifacts.features import TestFeatures
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.required import required_artifacts
from orchestrator.artifacts.source_model import Source
from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec, artifact_cache
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell, SourceRef
from orchestrator.core.events import TaskEvent
from orchestrator.execution.backend import local_backend
from orchestrator.execution.run import build_artifacts
from orchestrator.grid import load_grid
from orchestrator.planning.estimate import CORE_TFLOPS, assumed_gpu_tflops
from orchestrator.planning.plan import source_models
from orchestrator.store import Store
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_duration

FOLDS = 4

WITHOUT_SOURCES = (*FROZEN_CANDIDATES, "lora")
WITH_SOURCES = ("bolt", "bolt_pooled", *WITHOUT_SOURCES)
"""The candidates, the most trusted first; the first one is taken if nothing can be held out, or if several tie."""

TINY = "tiny-clip"
TINY_RATES = {"lora": "lora(learning_rate=0.001)", "bolt": "bolt(learning_rate=0.01)"}
TINY_FINE_TUNING = {"epochs": 8, "batch_size": 32, "learning_rate": 5e-4, "warmup_steps": 50}
"""Rates that fit the tiny tower, as in ``grids/demo-fewshot.yaml``; those of the papers are for far larger towers."""


@dataclass
class Trial:
    """A candidate on the held-out folds.

    Attributes:
        cell: the candidate, adapted to all training images.
        correct_N: whether each image was predicted correctly while it was held out; ``None`` if it was not measured.
        seconds: how long all folds took, without the features that candidates share.
        left_out: why it was not measured, else empty.
    """

    candidate: Candidate
    cell: Cell
    correct_N: NDArray[np.bool_] | None = None
    seconds: float = 0.0
    left_out: str = ""

    @property
    def text(self) -> str:
        """The candidate as it was written."""
        return self.candidate.text

    @property
    def is_measured(self) -> bool:
        """Whether all folds were predicted."""
        return self.correct_N is not None

    @property
    def accuracy(self) -> float:
        """Accuracy on the held-out images in per cent."""
        return 100 * float(self.correct_N.mean()) if self.correct_N is not None else float("nan")


@dataclass
class Trials:
    """The candidates in the order of trust, and everything that measuring them needs.

    Attributes:
        spent: seconds of the time for candidates that are used.
    """

    images: OwnImages
    candidates: list[Trial]
    catalog: Catalog
    sources: dict[SourceRef, Source]
    minutes: float
    console: Console
    spent: float = 0.0
    _speed: float = 0.0

    @property
    def loaded(self) -> ArtifactCache:
        """What this process has loaded."""
        return artifact_cache(self.images.settings)

    @property
    def folds(self) -> int:
        """How many folds there are; 0 if a class has a single image."""
        fewest = min(self.images.per_class)
        return 0 if fewest < 2 else min(FOLDS, fewest)

    def run(self) -> None:
        """Measure the candidates, the cheapest first. Raises ``UserError`` if an artifact cannot be built."""
        width = max(28, *(len(trial.text) for trial in self.candidates))
        for trial in sorted(self.candidates, key=self._gflop):
            left = 60 * self.minutes - self.spent
            estimated = self._gflop(trial) / self._gflops_per_second
            if self.spent and estimated > left:
                trial.left_out = f"an estimated {human_duration(estimated)} did not fit into the time left"
            else:
                self.build(self._shared_artifacts(trial), f"{trial.text}: preparing")
                self._measure(trial)
            if trial.left_out:
                print_line(f"  {trial.text:<{width}} not tried: {trial.left_out}", self.console)
            elif trial.is_measured:
                outcome = f"{trial.accuracy:5.1f} %   {human_duration(trial.seconds)}"
                print_line(f"  {trial.text:<{width}} {outcome}", self.console)

    def build(self, specs: Sequence[ArtifactSpec], what: str) -> None:
        """Build those that the store lacks. Raises ``UserError`` with the first that cannot be built."""
        settings = self.images.settings
        store = Store(settings.store_url)
        missing = [spec for spec in specs if not store.is_intact(spec.address, spec.identity)]
        titles = {spec.address: spec.title for spec in missing}

        def show(event: TaskEvent) -> None:
            if event.kind == "started":
                status.update(f"{what}, {titles[event.key]}")

        started = time.perf_counter()
        store.remove_failures([spec.address for spec in missing])
        with self.console.status(what) as status:
            failed = build_artifacts(missing, local_backend(settings), settings, store, show)
        seconds = time.perf_counter() - started
        self.spent += 0 if missing and isinstance(missing[0], HeldOutFold) else seconds
        gflop = sum(spec.gflops(self.catalog) for spec in missing)
        if gflop and seconds > 1:
            self._speed = gflop / seconds
        for address, event in failed.items():
            raise UserError(f"{titles[address]} could not be built: {event.error}", where=address)

    def _measure(self, trial: Trial) -> None:
        """Build the folds one after the other, and read them. A candidate that fails or is too slow is left out."""
        correct_N = np.zeros(sum(self.images.per_class), dtype=bool)
        for fold in range(self.folds):
            spec = HeldOutFold(trial.cell, fold, self.folds)
            try:
                self.build([spec], f"{trial.text}: fold {fold + 1} of {self.folds}")
            except UserError as error:
                trial.left_out = str(error).splitlines()[0]
                return
            rows_B, correct_B, seconds = self.loaded.get(spec)
            correct_N[rows_B] = correct_B
            trial.seconds += seconds
            self.spent += seconds
            remaining = seconds * (self.folds - fold)  # the other folds, and all images at the end
            if self.spent + remaining > 60 * self.minutes and fold + 1 < self.folds:
                took, more = human_duration(seconds), human_duration(remaining)
                trial.left_out = f"a fold took {took}, and {more} more did not fit"
                return
        if self.folds:
            trial.correct_N = correct_N

    def test_artifacts(self, trial: Trial) -> list[ArtifactSpec]:
        """What scoring a candidate on the test images needs, inputs first."""
        needed = required_artifacts([trial.cell], [trial.cell], self.catalog, self.sources)
        return [spec for spec in needed if isinstance(spec, TestFeatures | Images)]

    def _shared_artifacts(self, trial: Trial) -> list[ArtifactSpec]:
        """Return the artifacts that a candidate reads, without the features of the user's own test part.

        Those of a source's test part stay: building a source notes its accuracy.
        """
        cells = [each.cell for each in self.candidates]
        needed = required_artifacts([trial.cell], cells, self.catalog, self.sources)
        own = trial.cell.dataset
        return [spec for spec in needed if not (isinstance(spec, TestFeatures) and spec.dataset == own)]

    def _gflop(self, trial: Trial) -> float:
        """10^9 operations of a candidate on all folds and, at the end, on all images, with the artifacts it lacks."""
        store = Store(self.images.settings.store_url)
        size, method = sum(self.images.per_class), trial.candidate.method
        passes = trial.candidate.tower_passes(size)
        images = passes.forward + method.training_forwards * passes.training + size * method.changes_tower
        per_image = self.catalog.backbone(trial.cell.backbone.name).gflops_per_image
        artifacts = sum(
            spec.gflops(self.catalog)
            for spec in self._shared_artifacts(trial)
            if store.artifact(spec.address, spec.identity) is None
        )
        return images * per_image * max(1, self.folds) + artifacts

    @property
    def _gflops_per_second(self) -> float:
        """As measured on the artifacts built so far, else as assumed of this kind of device."""
        on_gpu = self.loaded.device != "cpu"
        threads = self.images.settings.threads
        return self._speed or 1e3 * (assumed_gpu_tflops() if on_gpu else CORE_TFLOPS * threads)


def read_candidates(request: Request) -> list[Candidate]:
    """Return the candidates that the user named, or else the default ones.

    Raises ``UserError`` for one that cannot be read or is given twice, and for one that needs sources without any.
    """
    texts = request.methods or (WITH_SOURCES if request.sources is not None else WITHOUT_SOURCES)
    if request.backbone == TINY and not request.methods:
        texts = tuple(TINY_RATES.get(text, text) for text in texts)
    try:
        candidates = [parse_candidate(text) for text in texts]
    except ValueError as error:
        raise UserError(str(error), where="--methods") from None
    for candidate in candidates:
        if candidate.uses_sources and request.sources is None:
            what = f"{candidate.method.name} needs source models"
            raise UserError(what, where="--methods", hint="give --sources DOMAIN")
    if len(set(texts)) < len(texts):
        raise UserError("a candidate is given twice", where="--methods")
    return candidates


def make_trials(
    request: Request,
    images: OwnImages,
    candidates: Sequence[Candidate],
    sources: Mapping[str, object] | None,
    console: Console,
) -> Trials:
    """Return the candidates as cells of a grid that is written to the working folder.

    Args:
        sources: the pool of source models, as in a grid file: ``{domain: NAME}`` or ``{datasets: [...]}``.

    Raises what :func:`orchestrator.grid.load_grid` raises.
    """
    labels = [f"{number}: {candidate.text}" for number, candidate in enumerate(candidates)]
    block = {
        "track": "fewshot",
        "backbones": [request.backbone],
        "datasets": [images.entry.name],
        "shots": [max(images.per_class)],
        "seeds": [1],
        "methods": [
            {"auto": {"candidates": [candidate.text], "as": label}}
            for candidate, label in zip(candidates, labels, strict=True)
        ],
        **({"sources": dict(sources)} if sources else {}),
    }
    content: dict[str, object] = {
        "title": f"adapt {images.entry.name}",
        "protocol": {"name": "strict", "short_classes": "take_all"},
        "blocks": [block],
    }
    if request.backbone == TINY:
        content["fine_tuning"] = TINY_FINE_TUNING
    path = request.work / "grid.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    catalog, root = load_catalog(images.settings.catalog_files), images.settings.data_folder
    grid = load_grid(path, catalog, data_root=root)
    cells = {grid.label(cell): cell for cell in grid.cells}
    trials = [Trial(candidate, cells[label]) for candidate, label in zip(candidates, labels, strict=True)]
    return Trials(images, trials, catalog, source_models(grid, catalog, root), request.minutes, console)
