"""The model that a finished cell made, with a note of where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.artifacts.images import class_names
from orchestrator.tracking.runs import accuracies

if TYPE_CHECKING:
    from bolt.model.model import Model
    from bolt.task.task import Adapted
    from orchestrator.artifacts.loaded import LoadedArtifacts
    from orchestrator.store.results import Result


def model_of(result: Result, adapted: Adapted, loaded: LoadedArtifacts) -> Model:
    """The model a cell made, with its cell, settings, data licence and accuracies in its notes."""
    from bolt.model.model import Model

    cell = result.cell
    entry = loaded.catalog.dataset(cell.dataset.name)
    names = class_names(loaded, cell.dataset, loaded.image_size(cell.backbone))
    return Model.from_adapted(
        loaded.backbone(cell.backbone), adapted, names, exif_rotation=entry.exif_rotation, notes=_notes(result, loaded)
    )


def _notes(result: Result, loaded: LoadedArtifacts) -> dict[str, Any]:
    cell = result.cell
    return {
        "cell": cell.id,
        "method": cell.method.name,
        "track": cell.track,
        "protocol": cell.protocol.name,
        "shots": cell.shots,
        "seed": cell.seed,
        "dataset": cell.dataset.name,
        "dataset_digest": cell.dataset.digest,
        "accuracy": accuracies(result)[0],
        "accuracy_zero_shot": accuracies(result)[1],
        "data_licence": loaded.catalog.dataset(cell.dataset.name).licence,
        "sources": {source.dataset: source.digest for source in cell.sources},
    }
