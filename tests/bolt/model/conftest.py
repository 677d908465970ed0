"""Source models on disk."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

import bolt
from bolt.clip.backbone import Backbone
from bolt.model.checkpoint_sources import CheckpointSources
from tests.helpers.towers import RandomSources


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Path:
    """Make a folder of three fine-tuned towers."""
    folder = tmp_path_factory.mktemp("checkpoints")
    base = backbone.tower.state_dict_open_clip()
    for name, vector in RandomSources(backbone, count=3).vectors.items():
        save_file({key: base[key] + vector[key] for key in base}, folder / f"{name}.safetensors")
    return folder


@pytest.fixture(scope="session")
def sources(checkpoints: Path, backbone: Backbone) -> CheckpointSources:
    return bolt.load_sources(checkpoints, backbone)
