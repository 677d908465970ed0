"""The table of ``sources list``: where each backbone's source model of each dataset comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.catalog import BackboneEntry, Catalog, backbone_ref, missing_checkpoint
from orchestrator.catalog.location import display_path
from orchestrator.store import Artifact, CorruptArtifact, Store
from orchestrator.util.console import plain_table
from orchestrator.util.units import listed

SHOWN_OPEN = 8


def source_table(catalog: Catalog, store: Store, backbone: str | None) -> RenderableType:
    """Per backbone, a row for every adopted or fine-tuned source model, and a line with the missing ones.

    Raises ``UserError`` for an unknown backbone.
    """
    chosen = list(catalog.backbones.values()) if backbone is None else [catalog.backbone(backbone, "--backbone")]
    tuned: dict[tuple[str, str], list[Artifact]] = {}
    for artifact in source_artifacts(store, "SourceModel"):
        key = artifact.identity["backbone"]["digest"], artifact.identity["dataset"]["name"]
        tuned.setdefault(key, []).append(artifact)
    return Group(*(part for entry in chosen for part in _of_one(entry, catalog, tuned, store)))


def _of_one(
    entry: BackboneEntry, catalog: Catalog, tuned: Mapping[tuple[str, str], list[Artifact]], store: Store
) -> list[RenderableType]:
    """Return what is shown of one backbone.

    ``tuned``: the models fine-tuned in the store, by its digest and the dataset.
    """
    numbers = ("accuracy", "zero-shot", "gain")
    table = plain_table("dataset", "source", *numbers, "from", right=numbers, overflow="fold")
    left = []
    for dataset in catalog.datasets:
        checkpoint = catalog.checkpoints.get((entry.name, dataset))
        models = tuned.get((backbone_ref(entry).digest, dataset), [])
        if checkpoint is not None:
            gone = missing_checkpoint(checkpoint) is not None
            file = f"{display_path(checkpoint.path)} is not there" if gone else display_path(checkpoint.path)
            table.add_row(dataset, "adopted", "", "", "", Text(file, "yellow" if gone else ""))
        for model in models:
            used = "fine-tuned" if checkpoint is None else "fine-tuned (the adopted one is used)"
            recipe, meta = model.identity["recipe"], model.meta
            words = f"{recipe['epochs']} epochs of {recipe['batch_size']}, learning rate {recipe['learning_rate']:g}"
            tuned_accuracy, zero_shot = meta["accuracy_fine_tuned"], meta["accuracy_zero_shot"]
            gain = tuned_accuracy - zero_shot
            shown = Text(f"{gain:+.2f}" if gain > 0 else f"{gain:+.2f}, no gain", "yellow" if gain <= 0 else "")
            table.add_row(dataset, used, f"{tuned_accuracy:.2f} %", f"{zero_shot:.2f} %", shown, words)
        if checkpoint is None and not models and catalog.datasets[dataset].has_training_images:
            left.append(dataset)
    parts: list[RenderableType] = [Text(f"{entry.name}: {entry.title}", style="bold")]
    if table.row_count:
        parts.append(table)
    if left:
        parts.append(Text(f"not fine-tuned yet: {listed(left, SHOWN_OPEN)}"))
    return [*parts, Text()]


def source_artifacts(store: Store, *kinds: str) -> Iterator[Artifact]:
    """Return the source models of a store that are of these kinds. A grid that needs a damaged one builds it again."""
    for address in store.addresses("sources"):
        with suppress(CorruptArtifact):
            artifact = store.artifact(address)
            if artifact is not None and artifact.identity["kind"] in kinds:
                yield artifact
