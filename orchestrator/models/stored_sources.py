"""Lists the source models of a store (``sources list``), and copies them into a folder (``sources export``)."""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.catalog import BackboneEntry, Catalog, backbone_ref, missing_checkpoint
from orchestrator.catalog.location import display_path
from orchestrator.models.find_result import find_result
from orchestrator.store import Artifact, CorruptArtifact, Store
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.console import plain_table
from orchestrator.util.errors import UserError, unknown_name
from orchestrator.util.grouping import grouped
from orchestrator.util.units import listed

SHOWN_OPEN = 8


def source_table(catalog: Catalog, store: Store, backbone: str | None) -> RenderableType:
    """Return a table of the adopted and fine-tuned source models of each backbone, and the datasets without a model.

    Raises ``UserError`` for an unknown backbone.
    """
    chosen = list(catalog.backbones.values()) if backbone is None else [catalog.backbone(backbone, "--backbone")]
    models = source_artifacts(store, "SourceModel")
    tuned = grouped(models, lambda model: (model.identity["backbone"]["digest"], model.identity["dataset"]["name"]))
    return Group(*(part for entry in chosen for part in _of_one(entry, catalog, tuned)))


def _of_one(
    entry: BackboneEntry, catalog: Catalog, tuned: Mapping[tuple[str, str], list[Artifact]]
) -> list[RenderableType]:
    """Return what to print about one backbone: its title, a table of its source models, the datasets without a model.

    ``tuned``: (digest of the backbone, dataset) -> the models in the store that were fine-tuned.
    """
    numbers = ("accuracy", "zero-shot", "gain")
    table = plain_table("dataset", "source", *numbers, "from", right=numbers, overflow="fold")
    left = []
    for dataset in catalog.datasets:
        checkpoint = catalog.checkpoints.get((entry.name, dataset))
        models = tuned.get((backbone_ref(entry).digest, dataset), [])
        if checkpoint is not None:
            gone = missing_checkpoint(checkpoint) is not None
            file = display_path(checkpoint.file) + " is not there" * gone
            table.add_row(dataset, "adopted", "", "", "", Text(file, "yellow" if gone else ""))
        for model in models:
            used = "fine-tuned" if checkpoint is None else "fine-tuned (the adopted one is used)"
            recipe, meta = model.identity["recipe"], model.meta
            how = f"epochs {recipe['epochs']}, batch {recipe['batch_size']}, learning rate {recipe['learning_rate']:g}"
            tuned_accuracy, zero_shot = meta["accuracy_fine_tuned"], meta["accuracy_zero_shot"]
            gain = tuned_accuracy - zero_shot
            shown = Text(f"{gain:+.2f}" if gain > 0 else f"{gain:+.2f}, no gain", "yellow" if gain <= 0 else "")
            table.add_row(dataset, used, f"{tuned_accuracy:.2f} %", f"{zero_shot:.2f} %", shown, how)
        if checkpoint is None and not models and catalog.datasets[dataset].has_training_images:
            left.append(dataset)
    parts: list[RenderableType] = [Text(f"{entry.name}: {entry.title}", style="bold")]
    if table.row_count:
        parts.append(table)
    if left:
        parts.append(Text(f"not fine-tuned yet: {listed(left, SHOWN_OPEN)}"))
    return [*parts, Text()]


def source_artifacts(store: Store, *kinds: str) -> Iterator[Artifact]:
    """Yield the source models in a store whose kind, such as ``SourceModel``, is one of ``kinds``.

    Damaged models are left out, because grids build them again.
    """
    for address in store.addresses("sources"):
        with suppress(CorruptArtifact):
            artifact = store.artifact(address)
            if artifact is not None and artifact.identity["kind"] in kinds:
                yield artifact


def export_sources(store: Store, folder: Path, *, backbone: str | None = None, cell: str | None = None) -> list[Path]:
    """Copy source models into a folder, one file per model.

    A file holds the model's image tower, with open_clip's names of tensors. It is named after the model's dataset. If
    two models have the same dataset, the names also have the first digits of the files' digests.

    Args:
        backbone: copies only the models of this backbone. It is needed if the store has models of several backbones.
        cell: the id of a cell, or the beginning of the id; copies only the source models of this cell.

    Returns the paths of the files. Raises ``UserError`` for an unknown cell or backbone, if the store has no such
    model, and if a file exists already or cannot be written.
    """
    from orchestrator.artifacts.spec import TOWER_FILE  # imports torch

    found = _of_cell(store, cell) if cell is not None else _of_backbone(store, backbone)
    datasets = Counter(artifact.meta["dataset"] for artifact in found)
    named = [(artifact.meta["dataset"], artifact.files[TOWER_FILE][2][:8]) for artifact in found]
    targets = [folder / f"{name}{f'--{digest}' if datasets[name] > 1 else ''}.safetensors" for name, digest in named]
    if there := [path for path in targets if path.exists()]:
        raise UserError(f"{there[0]} is there already", where="FOLDER", hint="name another folder, or remove the file")
    with writing("the source models", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for artifact, target in zip(found, targets, strict=True):
            with replacing(target) as temporary:
                shutil.copyfile(artifact.path(TOWER_FILE), temporary)
    return targets


def _of_cell(store: Store, wanted: str) -> list[Artifact]:
    """Return the source models of one cell."""
    from orchestrator.artifacts.source_model import source_address  # imports torch

    cell = find_result(store, wanted).cell
    if not cell.sources:
        raise UserError(f"{cell.id} uses no source models", where="--cell", hint="give a cell of a method such as bolt")
    found = []
    for source in cell.sources:
        if (artifact := store.artifact(source_address(cell.backbone.name, source))) is None:
            hint = "run the grid on an empty --store, which builds the model again, and use that store"
            raise UserError(f"the source model of {source.dataset} is not in the store", where=store.url, hint=hint)
        found.append(artifact)
    return found


def _of_backbone(store: Store, backbone: str | None) -> list[Artifact]:
    """Return all source models of a store that were fine-tuned from one backbone."""
    models = source_artifacts(store, "SourceModel", "AdoptedSource")
    if not (found := grouped(models, lambda model: str(model.identity["backbone"]["name"]))):
        raise UserError("the store has no source models", where=store.url, hint="a grid with sources builds them")
    if backbone is None and len(found) > 1:
        what = f"the store has source models of several backbones: {', '.join(found)}"
        raise UserError(what, hint="select one: --backbone B")
    if backbone is not None and backbone not in found:
        raise unknown_name("backbone with source models", backbone, found, where="--backbone")
    return found[backbone or next(iter(found))]
