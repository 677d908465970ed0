"""Build one artifact unless the store has it: the function that every build task runs, under Ray or not."""

from __future__ import annotations

from orchestrator.artifacts.spec import ArtifactSpec
from orchestrator.core.settings import RunSettings


def build(spec: ArtifactSpec, settings: RunSettings) -> str:
    """Build an artifact in the settings' store and return its address. One that is in the store stays as it is.

    Its inputs must be built. Raises what :meth:`ArtifactSpec.build` raises; no half-built artifact is left behind.
    """
    from orchestrator.artifacts.loaded import loaded_artifacts

    loaded = loaded_artifacts(settings)
    if loaded.store.artifact(spec.address, spec.identity) is None:
        with loaded.store.building(spec.address, spec.identity) as builder:
            spec.build(loaded, builder)
    return spec.address
