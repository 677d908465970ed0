"""Build one artifact, unless it is there: the function every stage task runs, under Ray or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.artifacts.kinds import ArtifactSpec
from orchestrator.core.settings import RunSettings

if TYPE_CHECKING:
    from orchestrator.artifacts.loaded import LoadedArtifacts
    from orchestrator.store import Builder


def build(spec: ArtifactSpec, settings: RunSettings) -> str:
    """Build ``need`` in the settings' store and return its address; one that is already there is left alone.

    Its inputs must be built. Raises what the builder raises; nothing half-built is left behind.
    """
    from orchestrator.artifacts.loaded import loaded_artifacts

    loaded = loaded_artifacts(settings)
    if loaded.store.artifact(spec.address, spec.identity) is None:
        with loaded.store.building(spec.address, spec.identity) as builder:
            _builder_of(spec)(spec, loaded, builder)
    return spec.address


def _builder_of(spec: ArtifactSpec) -> Callable[[Any, LoadedArtifacts, Builder], None]:
    from orchestrator.artifacts.adopted import build_adopted
    from orchestrator.artifacts.features import build_head, build_support_features, build_test_features
    from orchestrator.artifacts.images import build_images, build_support_images
    from orchestrator.artifacts.meta import build_meta_start
    from orchestrator.artifacts.source_model import build_source
    from orchestrator.artifacts.spectra import build_directions, build_total

    builders: dict[str, Callable[[Any, LoadedArtifacts, Builder], None]] = {
        "Images": build_images,
        "SupportImages": build_support_images,
        "Head": build_head,
        "TestFeatures": build_test_features,
        "SupportFeatures": build_support_features,
        "SourceModel": build_source,
        "AdoptedSource": build_adopted,
        "SourceDirections": build_directions,
        "DomainTotal": build_total,
        "MetaStart": build_meta_start,
    }
    return builders[type(spec).__name__]
