"""Artifacts: backbones in the store, builds in one process, weights that are not there."""

import io
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import is_offline_mode
from rich.console import Console

from orchestrator.artifacts.load_backbone import fetch_weights, load_backbone
from orchestrator.artifacts.spec import (
    TOWER_FILE,
    ArtifactCache,
    FrozenTower,
    artifact_cache,
    build,
    clear_artifact_caches,
)
from orchestrator.catalog import backbone_ref, load_catalog
from orchestrator.core.cell import BackboneRef
from orchestrator.core.settings import RunSettings
from orchestrator.util.errors import UserError
from tests.helpers.waiting import TIMEOUT

IMPORTS = """
import sys
from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.catalog import backbone_ref, load_catalog
from orchestrator.core.settings import RunSettings
for store in sys.argv[1:]:
    loaded = ArtifactCache(RunSettings(store, device="cpu"))
    loaded.backbone(backbone_ref(load_catalog().backbone("tiny-clip")))
    print(sorted({"open_clip", "torchvision"} & set(sys.modules)))
"""


@pytest.fixture
def tiny() -> BackboneRef:
    return backbone_ref(load_catalog().backbone("tiny-clip"))


def test_a_backbone_from_the_store_has_the_bits_of_open_clip(tiny: BackboneRef, tmp_path: Path) -> None:
    settings = RunSettings(str(tmp_path), device="cpu")
    loaded = ArtifactCache(settings).backbone(tiny)
    file = ArtifactCache(settings).artifact(build(FrozenTower(tiny), settings)).path(TOWER_FILE)
    read = ArtifactCache(settings).backbone(tiny)
    assert read.digest == loaded.digest
    assert read.tower.shape == loaded.tower.shape
    assert (read.logit_scale, read.mean, read.std) == (loaded.logit_scale, loaded.mean, loaded.std)
    pixels = torch.arange(256, dtype=torch.uint8).repeat(2 * 3 * 32 * 32 // 256).view(2, 3, 32, 32)
    assert torch.equal(read.encode_images(pixels), loaded.encode_images(pixels))
    prompts = ["a drawing of a circle", "a star"]
    assert torch.equal(read.encode_prompts(prompts), loaded.encode_prompts(prompts))
    assert torch.equal(read.tokenize(prompts), loaded.tokenize(prompts))
    file.write_bytes(file.read_bytes()[:-1])  # damaged: the weights are loaded
    assert ArtifactCache(settings).backbone(tiny).digest == loaded.digest


@pytest.mark.slow
def test_a_backbone_from_the_store_imports_no_open_clip(tiny: BackboneRef, tmp_path: Path) -> None:
    build(FrozenTower(tiny), RunSettings(str(tmp_path / "built"), device="cpu"))
    command = [sys.executable, "-c", IMPORTS, str(tmp_path / "built"), str(tmp_path / "empty")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert done.stdout.splitlines() == ["[]", "['open_clip', 'torchvision']"]  # not built: the weights are loaded


def test_builds_on_the_cpu_do_not_drop_what_builds_on_the_best_device_have_loaded(tmp_path: Path) -> None:
    """Builds of images on the CPU, between builds that need the tower, once made the process load the tower again."""
    settings = RunSettings(str(tmp_path))
    loaded = artifact_cache(settings)
    artifact_cache(replace(settings, device="cpu"))
    assert artifact_cache(settings) is loaded
    clear_artifact_caches()
    assert artifact_cache(settings) is not loaded


def test_a_dataset_added_to_a_catalog_file_is_found_by_a_process_that_has_loaded_the_file(tmp_path: Path) -> None:
    """In a process that ran ``grid --local`` twice, the dataset of the second grid was once unknown."""
    file = tmp_path / "catalog.yaml"
    file.write_text("prompts: {ware: ['ware {}']}\n")
    settings = RunSettings(str(tmp_path), catalog_files=(str(file),))
    assert "tools" not in artifact_cache(settings).catalog.domains
    file.write_text(f"{file.read_text()}domains: {{tools: {{title: Tools}}}}\n")
    assert "tools" in artifact_cache(settings).catalog.domains


def test_a_cell_fetches_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable was set after the hub's library had read it. So a cell tried to reach the hub twelve times."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    asked: list[object] = []

    def refuse(host: object, *_: object) -> None:
        asked.append(host)
        raise OSError("no network")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    with pytest.raises(UserError, match="not on this machine"):
        load_backbone(load_catalog().backbone("vit-b-32"), "cpu")
    assert not asked
    assert not is_offline_mode(), "only while a backbone is loaded"


def test_the_error_names_the_first_cause(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nowhere")
    said = io.StringIO()
    console = Console(file=said, force_terminal=True)
    fetch_weights(load_catalog().backbone("tiny-clip"), console)
    assert not said.getvalue(), "a backbone with a file of weights is not fetched"
    with pytest.raises(UserError) as caught:
        fetch_weights(load_catalog().backbone("vit-b-32"), console, where="--backbone", instead=["or this"])
    assert caught.value.where == "--backbone"
    assert "offline" in caught.value.what.lower()
    assert "Last error" not in caught.value.what
    assert caught.value.hint.endswith("backbones add --help\n  or this")
    assert "fetching the weights of vit-b-32" in said.getvalue()
    assert not caplog.records
    assert logging.getLogger("huggingface_hub").level == logging.WARNING, "as the hub sets it"
