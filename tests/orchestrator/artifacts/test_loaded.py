"""What a process keeps of the artifacts and backbones that it has loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.artifacts.spec import artifact_cache, clear_artifact_caches
from orchestrator.core.settings import RunSettings


def test_builds_on_the_cpu_do_not_drop_what_builds_on_the_best_device_have_loaded(tmp_path: Path) -> None:
    """A grid's images are built on the CPU, between features that need the tower: it was loaded again for each."""
    settings = RunSettings(str(tmp_path))
    loaded = artifact_cache(settings)
    artifact_cache(replace(settings, device="cpu"))
    assert artifact_cache(settings) is loaded
    clear_artifact_caches()
    assert artifact_cache(settings) is not loaded


def test_a_dataset_added_to_a_catalog_file_is_found_by_a_process_that_has_loaded_the_file(tmp_path: Path) -> None:
    """Two ``grid --local`` in one process: the second one's dataset was unknown."""
    file = tmp_path / "catalog.yaml"
    file.write_text("prompts: {ware: ['ware {}']}\n")
    settings = RunSettings(str(tmp_path), catalog_files=(str(file),))
    assert "tools" not in artifact_cache(settings).catalog.domains
    file.write_text(f"{file.read_text()}domains: {{tools: {{title: Tools}}}}\n")
    assert "tools" in artifact_cache(settings).catalog.domains
