"""Kind ``HeldOutFold``: what a candidate predicts for one fold of the support after adapting to the other folds.

It stands here and not in ``artifacts/``, because it makes the task of a cell and runs a method.

Shape legend: B held-out images.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bolt.methods.common.candidates import Candidate, held_out_predictions
from bolt.methods.common.cross_validation import stratified_folds
from orchestrator.artifacts.required import configured_method
from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.task import make_task
from orchestrator.core.cell import Cell
from orchestrator.store import Artifact, Builder


@contextmanager
def threads_for(candidate: Candidate, support_size: int) -> Iterator[None]:
    """One thread for a candidate that trains on frozen features alone; all threads for one that runs the tower.

    Steps on frozen features are so short that threads mostly wait for each other. With other work on two cores, the
    linear probe's folds took 58 to 120 s with two threads and 5 s with one. On two idle cores, they took 4 s with two.
    """
    threads = torch.get_num_threads()
    passes = candidate.tower_passes(support_size)
    if not (passes.forward or passes.training or passes.text_training):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class HeldOutFold(ArtifactSpec):
    """A candidate's predictions for one fold of the training images. No test image is read.

    Attributes:
        cell: of the method ``auto`` with one candidate, which here adapts to the images outside of the fold.
        fold, folds: number of the fold, from 0, and how many there are.
    """

    kind = "held_out"
    title = "held-out folds"
    shrink_hint = "fewer candidates"
    gpu_share = 1.0

    cell: Cell
    fold: int
    folds: int

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        cell = self.cell
        (candidate,) = configured_method(cell)[1].parsed
        return cell.backbone.name, cell.dataset.name, candidate.method.name, f"fold{self.fold + 1}of{self.folds}"

    def size_bytes(self, catalog: Catalog) -> int:
        return 9 * catalog.dataset(self.cell.dataset.name).sizes.train // self.folds

    def build(self, loaded: ArtifactCache, builder: Builder) -> None:
        """Adapt to the other folds and predict this one: ``rows.npy`` and ``correct.npy``, (B,)."""
        started = time.perf_counter()
        task = make_task(CellInputs(self.cell, loaded))
        labels_N = task.support.labels_N.cpu()
        held_out_B = torch.nonzero(stratified_folds(labels_N, self.folds) == self.fold).flatten()
        (candidate,) = configured_method(self.cell)[1].parsed
        with threads_for(candidate, len(task.support)):
            predicted_B = held_out_predictions(task, candidate, held_out_B)
        np.save(builder.folder / "rows.npy", held_out_B.numpy())
        np.save(builder.folder / "correct.npy", (predicted_B == labels_N[held_out_B]).numpy())
        builder.meta.update(images=len(held_out_B), seconds=time.perf_counter() - started)

    def load(self, artifact: Artifact, device: str) -> tuple[NDArray[np.int64], NDArray[np.bool_], float]:
        """Return the held-out images, whether each was predicted correctly, and the seconds.

        The images are positions in the support; both arrays are (B,).
        """
        rows_B, correct_B = np.load(artifact.path("rows.npy")), np.load(artifact.path("correct.npy"))
        return rows_B, correct_B, artifact.meta["seconds"]
