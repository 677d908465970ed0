"""From a finished cell to a model that can be used without this project's engine.

What a cell made is kept where it is small. Anything else is made again: the same cell gives the same bits. Either way
the model is scored on the cell's own test images and held against the recorded result before it is written, and what
was written is read back and held against the model.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from orchestrator.store import Store
from orchestrator.store.results import Result
from orchestrator.tracking.runs import accuracies
from orchestrator.util.errors import UserError, unknown_name

if TYPE_CHECKING:
    import torch

    from bolt.model.model import Model
    from bolt.model.saving import Form
    from bolt.spectral.sources import Sources
    from bolt.task.task import Adapted
    from orchestrator.artifacts.loaded import LoadedArtifacts
    from orchestrator.store.results import Evaluation, Manifest

COMPARED = 16
"""Test images whose logits are compared after reading a model back."""

CLOSE = 1e-5
"""How far the logits of a model read back may be from those in memory, relative to the largest."""


@dataclass(frozen=True)
class Made:
    """A finished cell's model, scored again.

    Attributes:
        how: ``kept`` with the result, or made ``again`` by running the cell.
        accuracy: per cent, as scored now.
        warnings: where it is not the recorded one, and what may explain that.
    """

    model: Model
    how: str
    accuracy: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Written:
    """A model on disk: how many images' logits were compared after reading it back, and their largest difference."""

    folder: Path
    compared: int
    difference: float


def find_result(store: Store, wanted: str) -> Result:
    """The finished cell of an id, or of the beginning of one that no other id has.

    Raises ``UserError`` with the nearest ids, or those that begin so; or for a result that cannot be read.
    """
    ids = sorted(store.result_ids())
    found = [wanted] if wanted in ids else [name for name in ids if name.startswith(wanted)]
    if not found:
        raise unknown_name("cell", wanted, ids, where=store.url)
    if len(found) > 1:
        shown = "\n  ".join(found[:8]) + (f"\n  ... ({len(found)} in all)" if len(found) > 8 else "")
        raise UserError(f"{len(found)} cells begin with {wanted!r}", where=store.url, hint=shown)
    try:
        return store.read_result(found[0])
    except ValueError as error:
        raise UserError(f"the result of {found[0]} cannot be read: {error}", hint="run its grid again") from None


def make_model(result: Result, loaded: LoadedArtifacts) -> Made:
    """What a finished cell made: as it was kept, or made again; held against the recorded result.

    Raises ``UserError`` when an artifact of the cell is gone, its classifier cannot be written down, or the accuracy
    is not the recorded one on the device and under the versions that measured it.
    """
    if result.cell.dataset.name not in loaded.catalog.datasets:
        raise UserError(
            f"the cell's dataset {result.cell.dataset.name} is in no catalog file",
            hint="give the --catalog that its grid was run with",
        )
    try:
        model, evaluations, how = _make(result, loaded)
    except FileNotFoundError as error:
        raise UserError(
            f"something that {result.cell.id} was made from is gone: {error}",
            hint="run its grid on an empty --store, which builds it again, and export from there",
        ) from None
    warnings = _compare(result, evaluations, loaded)
    return Made(model, how, accuracies(replace(result, evaluations=evaluations))[0], warnings)


def write_model(
    made: Made,
    result: Result,
    loaded: LoadedArtifacts,
    folder: Path,
    form: Form = "adapter",
    *,
    with_basis: bool = False,
) -> Written:
    """Write a model into a new folder, read it back and compare the logits of a few test images.

    Raises ``UserError`` when something is there already, and where the logits differ by more than ``CLOSE``.
    """
    try:
        made.model.save(folder, form, with_basis=with_basis)
    except FileExistsError:
        raise UserError(f"{folder} is there already", where="-o", hint="name a folder that is not there yet") from None
    except OSError as error:
        raise UserError(f"the model cannot be written: {error.strerror or error}", where=f"-o {folder}") from None
    compared, difference = _read_back(made.model, folder, result, loaded)
    return Written(folder, compared, difference)


def example_of(result: Result, loaded: LoadedArtifacts) -> bytes:
    """The first test image as the tower sees it, as a PNG file."""
    (pixels_3SS,) = _some_images(result, loaded, 1)
    stream = io.BytesIO()
    Image.fromarray(pixels_3SS.permute(1, 2, 0).numpy()).save(stream, "PNG")
    return stream.getvalue()


def _make(result: Result, loaded: LoadedArtifacts) -> tuple[Model, tuple[Evaluation, ...], str]:
    """The model, its score on what the cell was scored on, and where it came from."""
    from bolt.task.task import Adapted
    from orchestrator.cells.evaluation import evaluate
    from orchestrator.cells.trial import measure

    kept = _kept(result, loaded)
    if kept is None:
        measured = measure(result.cell, loaded)
        return _writable(result, measured.adapted, loaded), measured.result.evaluations, "again"
    tower = None if kept.tower is kept.frozen else kept.tower
    adapted = Adapted(kept.classifier, tower)
    scored = tuple(evaluate(result.cell, dataset, adapted, loaded) for dataset in result.cell.evaluate_on)
    return kept, scored, "kept"


def _kept(result: Result, loaded: LoadedArtifacts) -> Model | None:
    """The model of the adapter that the store keeps; ``None`` where there is none, or no whole one."""
    from bolt.model.loading import OtherBackbone, UnreadableModel, load_model
    from bolt.spectral.updates import OtherBasis

    cell = result.cell
    folder = loaded.store.adapter_folder(cell.id)
    if folder is None:
        return None
    try:
        return load_model(folder, loaded.backbone(cell.backbone), _sources(result, loaded))
    except (UnreadableModel, OtherBackbone, OtherBasis):
        return None  # damaged, or of another version of the format: the cell can be run again


def _sources(result: Result, loaded: LoadedArtifacts) -> Sources | None:
    """The cell's source models; ``None`` where it has none, or has images instead."""
    from bolt.methods import METHODS

    method = METHODS[result.cell.method.name]
    return loaded.sources(result.cell) if method.uses_sources and method.meta_recipe is None else None


def _writable(result: Result, adapted: Adapted, loaded: LoadedArtifacts) -> Model:
    from bolt.task.classifiers import UnknownClassifier
    from orchestrator.cells.model import model_of

    try:
        return model_of(result, adapted, loaded)
    except UnknownClassifier as error:
        raise UserError(f"what {result.cell.method.name} made cannot be exported: {error}") from None


def _compare(result: Result, evaluations: tuple[Evaluation, ...], loaded: LoadedArtifacts) -> tuple[str, ...]:
    """Hold the model's score against the recorded one; a warning where the machine may explain a difference."""
    from orchestrator.cells.manifest import make_manifest

    found = [(scored.dataset, scored.correct, scored.total) for scored in evaluations]
    recorded = [(scored.dataset, scored.correct, scored.total) for scored in result.evaluations]
    if found == recorded:
        return ()
    now, then = make_manifest(loaded, ()), result.manifest
    what = "; ".join(
        f"{name}: {correct} of {total} images correct, recorded {before}"
        for (name, correct, total), (_, before, _) in zip(found, recorded, strict=True)
        if correct != before
    )
    differing = [
        f"{name} {before or '?'} then, {after or '?'} now"
        for name, before, after in (
            ("device", then.device, now.device),
            ("threads", str(then.threads), str(now.threads)),
            *((name, then.versions.get(name, ""), now.versions.get(name, "")) for name in _packages(then, now)),
        )
        if before != after
    ]
    if differing:
        return (f"{what} ({'; '.join(differing)})",)
    raise UserError(
        f"the model does not score as its cell did: {what}",
        hint="device and versions are those of the measurement, so the store or the code has changed since then",
    )


def _packages(then: Manifest, now: Manifest) -> list[str]:
    return sorted({*then.versions, *now.versions})


def _read_back(model: Model, folder: Path, result: Result, loaded: LoadedArtifacts) -> tuple[int, float]:
    """Read what was written, and compare its logits on a few test images: how many, and the largest difference.

    Raises ``UserError`` where they differ by more than ``CLOSE``. That the numbers are the same ones is what the
    checksums say; the last bit of a product can depend on where in memory they lie.
    """
    import torch

    from bolt.model.loading import load_model

    cell = result.cell
    backbone = loaded.backbone(cell.backbone)
    again = load_model(folder, backbone, _sources(result, loaded))
    pixels = _some_images(result, loaded)
    ours, theirs = model.logits(pixels), again.logits(pixels)
    difference = float((ours - theirs).abs().max())
    if not difference <= CLOSE * float(ours.abs().max()) or not torch.isfinite(theirs).all():
        raise UserError(
            f"the model read back from {folder} gives other logits: they differ by up to {difference:g}",
            hint="do not use it; this is a defect of the project or of the disk",
        )
    return len(pixels), difference


def _some_images(result: Result, loaded: LoadedArtifacts, count: int = COMPARED) -> torch.Tensor:
    """The first test images, uint8 (B, 3, S, S)."""
    cell = result.cell
    images = loaded.images(cell.evaluate_on[0], "test", loaded.image_size(cell.backbone))
    return images.batch(0, min(count, len(images)))
