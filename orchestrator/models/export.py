"""Exports the model of a finished cell, to use without this project's engine.

The store keeps a cell's adapter if it is small. Otherwise the cell is run again, which gives the same bits. Before the
model is saved, it is scored on the cell's test images and compared with the recorded result. Afterwards the saved model
is read back and compared with the model in memory.
"""

import io
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image

from bolt.model.loading import BackboneMismatch, UnreadableModel, load_model
from bolt.model.model import Model
from bolt.model.saving import Form
from bolt.spectral.spectral_change import BasisMismatch
from bolt.task.classifiers import UnknownClassifier
from bolt.task.task import Adapted
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.catalog import BackboneEntry
from orchestrator.cells.evaluation import evaluate_cell
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.manifest import make_manifest
from orchestrator.cells.measure import measure, model_of
from orchestrator.core.cell import Cell
from orchestrator.models.model_card import ModelCard, write_card
from orchestrator.store.results import Evaluation, Result
from orchestrator.tracks import stored_track
from orchestrator.util.atomic_files import writing
from orchestrator.util.errors import UserError, explained

COMPARED_IMAGES = 16
"""Number of test images whose logits are compared after a model is read back."""

LOGIT_TOLERANCE = 1e-5
"""Largest allowed difference between the logits of a model in memory and of the same model read back, relative to the
largest logit."""


@dataclass(frozen=True)
class RestoredModel:
    """The model of a finished cell, scored again.

    Attributes:
        how: ``kept`` if the store had its adapter, ``again`` if the cell was run again.
        accuracy: the accuracy measured now, in per cent.
        warnings: differences from the recorded accuracy, and what may explain them.
    """

    model: Model
    how: str
    accuracy: float
    warnings: tuple[str, ...]


def check_form(form: Form, backbone: BackboneEntry, learns_tokens: str | None = None) -> None:
    """Raise ``UserError`` for a form that a model of this backbone cannot have.

    ``learns_tokens``: name of the method if it learns tokens of the image tower, else ``None``.
    """
    if form != "adapter" and not backbone.has_matrices:
        what = f"{backbone.name} gives features only, so its models are saved as adapters"
        raise UserError(what, where="--as", hint="use --as adapter")
    if form == "huggingface" and backbone.timm:
        what = f"{backbone.name} is no CLIP of transformers"
        raise UserError(what, where="--as", hint="use --as adapter, or --as state_dict for open_clip's names")
    if form == "huggingface" and learns_tokens is not None:
        what = f"{learns_tokens} learns tokens of the image tower, and transformers' CLIP cannot hold them"
        raise UserError(what, where="--as", hint="use --as adapter or --as state_dict")


def restore_model(result: Result, loaded: ArtifactCache) -> RestoredModel:
    """Return a finished cell's model, from the kept adapter or by running the cell again, and compare its accuracy.

    Raises ``UserError`` if an artifact of the cell is missing, if the classifier cannot be saved, or if the accuracy
    differs from the recorded one although device and package versions are the same.
    """
    cell = result.cell
    with readable_inputs(result, loaded):
        inputs = CellInputs(cell, loaded)
        # An adapter does not tell how its method embeds the class words of other datasets.
        model, how = None if inputs.artifacts.own_heads else load_adapter(cell, loaded), "kept"
        if model is not None:
            adapted = Adapted(model.classifier, None if model.tower is model.frozen else model.tower)
            evaluations = tuple(scored.evaluation for scored in evaluate_cell(inputs, adapted))
        else:
            measured, how = measure(cell, loaded), "again"
            evaluations = measured.result.evaluations
            if measured.adapted.fixed_NC is not None:
                what = f"{cell.method.name} predicts every test image by itself or at its place in a stream"
                raise UserError(f"{what}, so no model has this accuracy", hint="cells of other tracks have one")
            with explained(UnknownClassifier, what=f"the model of {cell.method.name} cannot be exported"):
                model = model_of(result, measured.adapted, loaded)
    warnings = _compare(result, evaluations, loaded)
    return RestoredModel(model, how, replace(result, evaluations=evaluations).accuracies[0], warnings)


@contextmanager
def readable_inputs(result: Result, loaded: ArtifactCache) -> Iterator[None]:
    """Run the ``with`` block, and raise ``UserError`` if the block does not find an artifact of the cell.

    If the catalog lacks the cell's dataset, raise ``UserError`` before the block.
    """
    if result.cell.dataset.name not in loaded.catalog.datasets:
        what = f"the cell's dataset {result.cell.dataset.name} is in no catalog file"
        raise UserError(what, hint="give the --catalog that the grid was run with")
    hint = "run the grid on an empty --store, which builds the input again, and use that store"
    with explained(FileNotFoundError, what=f"an input of {result.cell.id} is missing", hint=hint):
        yield


def save_model(
    made: RestoredModel, result: Result, loaded: ArtifactCache, folder: Path, form: Form, *, with_basis: bool = False
) -> float:
    """Save the model of a cell with its model card. :func:`save_checked` says how the saved model is checked."""
    cell, notes = result.cell, [f"Cell: `{result.cell.id}`, protocol `{result.cell.protocol.name}`."]
    if cell.selects_on_test:
        notes.append("Under this protocol, a setting may have been chosen on test labels.")
    if stored_track(cell.track).own_words:
        notes.append("Other datasets were classified among their own class words, which this model does not have.")
    size, trained = result.support_size, result.trainable_parameters
    card = ModelCard(cell.id, cell, result.evaluations, tuple(notes), size, trained, result.manifest)
    pixels = _some_images(result, loaded, COMPARED_IMAGES)
    return save_checked(made.model, folder, form, card, CellInputs(cell, loaded), pixels, with_basis=with_basis)


def save_checked(
    model: Model,
    folder: Path,
    form: Form,
    card: ModelCard,
    inputs: CellInputs,
    pixels: torch.Tensor,
    *,
    with_basis: bool = False,
    hint: str = "",
    beside: AbstractContextManager[None] | None = None,
) -> float:
    """Save a model with its model card, read it back, and compare the logits.

    The model is saved in a temporary folder, which is renamed to ``folder`` only after the comparison.

    Returns the largest difference between the logits of the model in memory and those of the model read back, for
    ``pixels``, uint8 (B, 3, S, S). Checksums guarantee equal weights, but the last bit of a product can depend on the
    memory's alignment.

    ``beside``: a context manager around the renaming, entered after the check. ``adapt`` uses it to write its page.

    Raises ``UserError`` with ``hint`` if the folder cannot be written. Raises ``UserError`` with a hint of its own if
    a logit is not finite, or if the difference is more than ``LOGIT_TOLERANCE`` times the largest logit.
    """
    place = folder.with_name(f".{folder.name}.checking")
    shutil.rmtree(place, ignore_errors=True)  # left by a killed command, with whatever it had begun to write
    staged = place / folder.name
    try:
        with writing(f"the model {folder}", "-o", hint):
            model.save(staged, form, with_basis=with_basis)
            write_card(card, inputs.loaded.catalog, staged, form, model.tower.prompts is not None)
        ours, theirs = model.logits(pixels), load_model(staged, inputs.backbone, inputs.sources).logits(pixels)
        difference = float((ours - theirs).abs().max())
        if not difference <= LOGIT_TOLERANCE * float(ours.abs().max()) or not torch.isfinite(theirs).all():
            what = f"the model {folder} gives other logits when it is read back: they differ by up to {difference:g}"
            raise UserError(what, hint="it was removed: this is a bug of the project or a fault of the disk")
        with writing(f"the model {folder}", "-o", hint), beside or nullcontext():
            staged.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return difference


def example_image(result: Result, loaded: ArtifactCache) -> bytes:
    """Return the first test image as the tower sees it, as a PNG file."""
    (pixels_3SS,) = _some_images(result, loaded, 1)
    stream = io.BytesIO()
    Image.fromarray(pixels_3SS.permute(1, 2, 0).numpy()).save(stream, "PNG")
    return stream.getvalue()


def load_adapter(cell: Cell, loaded: ArtifactCache) -> Model | None:
    """Return the model of the cell's adapter in the store; ``None`` without a usable adapter."""
    if (folder := loaded.store.adapter_folder(cell.id)) is None:
        return None
    # If the adapter is damaged or of another format, the cell can be run again.
    with suppress(UnreadableModel, BackboneMismatch, BasisMismatch):
        model = load_model(folder, loaded.backbone(cell.backbone), CellInputs(cell, loaded).sources)
        entry = loaded.catalog.dataset(cell.dataset.name)
        # Adapters of earlier versions do not state how images are read: their bands and range.
        return replace(model, about=replace(model.about, bands=entry.bands, range=entry.range))
    return None


def _compare(result: Result, evaluations: tuple[Evaluation, ...], loaded: ArtifactCache) -> tuple[str, ...]:
    """Compare the model's scores with the recorded ones, and return warnings.

    Raises ``UserError`` if they differ although device and package versions are the same.
    """
    what = "; ".join(
        f"{now.dataset}: {now.correct} of {now.total} images correct, but {then.correct} in the recorded result"
        for now, then in zip(evaluations, result.evaluations, strict=True)
        if (now.correct, now.total) != (then.correct, then.total)
    )
    if not what:
        return ()
    if differing := result.manifest.differences(make_manifest(loaded, ())):
        listed = "; ".join(f"{name} {then} then, {now} now" for name, (then, now) in differing.items())
        return (f"{what} ({listed})",)
    hint = "device and package versions are the same, so the store or the code has changed since the cell ran"
    raise UserError(f"the model has other scores than its cell: {what}", hint=hint)


def _some_images(result: Result, loaded: ArtifactCache, count: int) -> torch.Tensor:
    """Return the first test images, uint8 (B, 3, S, S)."""
    cell = result.cell
    images = loaded.get(Images(cell.evaluate_on[0], "test", loaded.image_size(cell.backbone)))
    return images.batch(0, min(count, len(images)))
