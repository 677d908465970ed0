"""Kind ``HeldOutFold``: a candidate's predictions for one fold of the support after adapting to the other folds.

The kind is not in ``artifacts/``, because it needs ``cells/``, which imports ``artifacts/``.

Shape legend: N images, B held-out images of a fold, C classes.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bolt.methods.auto import AutoSettings
from bolt.methods.common.candidates import Candidate, held_out_logits
from bolt.methods.common.cross_validation import stratified_folds
from orchestrator.artifacts.required import configured_method
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactCache, ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.task import make_task
from orchestrator.core.cell import Cell
from orchestrator.store import Artifact, Builder


def candidate_of(cell: Cell) -> Candidate:
    """Return the only candidate of a cell of the method ``auto``."""
    settings: AutoSettings = configured_method(cell)[1]
    (candidate,) = settings.parsed
    return candidate


@contextmanager
def threads_for(candidate: Candidate, support_size: int) -> Iterator[None]:
    """Use one thread during the block if the candidate trains on frozen features alone.

    Steps on frozen features are so short that threads mostly wait for each other. On two cores with other work, the
    linear probe's folds took 58 to 120 s with two threads and 5 s with one. On two idle cores, two threads took 4 s.
    """
    threads = torch.get_num_threads()
    passes = candidate.tower_passes(support_size)
    if not (passes.forward or passes.training or passes.text_training):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class HeldOut(NamedTuple):
    """Predictions for N held-out images.

    Attributes:
        rows_N: the row of each image in the support.
        positions_N: the position of each image in the training split.
        correct_N: whether the true class of the image was predicted.
        probabilities_NC: the predicted probability of each class.
    """

    rows_N: NDArray[np.int64]
    positions_N: NDArray[np.int64]
    correct_N: NDArray[np.bool_]
    probabilities_NC: NDArray[np.float32]

    @classmethod
    def joined(cls, folds: Sequence[Self]) -> Self:
        """Return the predictions of all folds, in the order of the support."""
        order_N = np.argsort(np.concatenate([fold.rows_N for fold in folds]))
        return cls._make(np.concatenate(parts)[order_N] for parts in zip(*folds, strict=True))

    def scores_without(self, repeated: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return, for each image, its highest probability and whether its true class was predicted.

        An image whose position in the training split is in ``repeated`` is a copy of another image of its class and is
        left out.
        """
        kept_N = ~np.isin(self.positions_N, repeated)
        return self.probabilities_NC.max(axis=1)[kept_N], self.correct_N[kept_N]


@dataclass(frozen=True)
class HeldOutFold(ArtifactSpec):
    """A candidate's predictions for one fold of the training images. No test image is read.

    Attributes:
        cell: a cell of the method ``auto`` with one candidate. The candidate adapts to the images outside the fold.
        fold: the number of the fold, from 0.
        folds: the number of folds.
        copies: groups of training images that belong together, as positions in the split. A group is in one fold.
    """

    version = 2
    kind = "held_out"
    title = "held-out folds"
    shrink_hint = "fewer candidates"
    gpu_share = 1.0

    cell: Cell
    fold: int
    folds: int
    copies: tuple[tuple[int, ...], ...] = ()

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        cell, method = self.cell, candidate_of(self.cell).method
        return cell.backbone.name, cell.dataset.name, method.name, f"fold{self.fold + 1}of{self.folds}"

    def size_bytes(self, catalog: Catalog) -> int:
        entry = catalog.dataset(self.cell.dataset.name)
        return (17 + FLOAT_BYTES * entry.classes) * entry.sizes.train // self.folds

    def build(self, loaded: ArtifactCache, builder: Builder) -> None:
        """Adapt to the other folds, predict this fold, and save each field of :class:`HeldOut` as an array."""
        started = time.perf_counter()
        task = make_task(CellInputs(self.cell, loaded))
        labels_N, positions_N = task.support.labels_N.cpu(), task.support.indices_N
        copies = [np.flatnonzero(np.isin(positions_N, group)).tolist() for group in self.copies]
        held_out_B = torch.nonzero(stratified_folds(labels_N, self.folds, copies) == self.fold).flatten()
        candidate = candidate_of(self.cell)
        with threads_for(candidate, len(task.support)):
            logits_BC = held_out_logits(task, candidate, held_out_B)
        found = HeldOut(
            held_out_B.numpy(),
            positions_N[held_out_B].numpy(),
            (logits_BC.argmax(-1) == labels_N[held_out_B]).numpy(),
            logits_BC.float().softmax(-1).numpy(),
        )
        for name, values in found._asdict().items():
            np.save(builder.folder / f"{name}.npy", values)
        builder.meta.update(images=len(held_out_B), seconds=time.perf_counter() - started)

    def load(self, artifact: Artifact, device: str) -> tuple[HeldOut, float]:
        """Return the predictions, and the number of seconds that the build took."""
        return HeldOut(*(np.load(artifact.path(f"{name}.npy")) for name in HeldOut._fields)), artifact.meta["seconds"]
