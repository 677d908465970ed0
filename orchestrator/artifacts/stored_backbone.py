"""A backbone whose image tower is read from the store. Its text side is loaded with open_clip when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.artifacts.load_backbone import TextSide
from orchestrator.catalog import BackboneEntry
from orchestrator.core.cell import BackboneRef
from orchestrator.store import Artifact
from orchestrator.util.identity import address

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone

TOWER_FILE = "tower.safetensors"
"""The file of an image tower in any artifact: its tensors, by open_clip's visual names."""

TOWER_VERSION = 1


def frozen_tower_address(backbone: BackboneRef) -> str:
    """The address of the ``FrozenTower`` of a backbone, whose ``precision`` is ``None``."""
    return f"backbones/{address(backbone.name, of=('FrozenTower', TOWER_VERSION, backbone))}"


def read_backbone(entry: BackboneEntry, artifact: Artifact, device: str) -> Backbone:
    """The backbone of a catalog entry on a device, with the image tower of its built ``FrozenTower``."""
    from safetensors.torch import load_file

    from bolt.clip.backbone import Backbone
    from bolt.clip.tower import ImageTower
    from bolt.clip.tower_shape import TowerShape

    # Copied: in the file, tensors lie at any address, and the bits of a product depend on it. Of 200 products with the
    # matrices of ViT-B/32, 50 differ.
    tensors = {name: tensor.clone() for name, tensor in load_file(artifact.path(TOWER_FILE)).items()}
    meta, text = artifact.meta, TextSide(entry)
    tower = ImageTower.from_tensors(TowerShape(**meta["shape"]), tensors)
    backbone = Backbone(entry.name, tower, text.load, text.tokenize, meta["logit_scale"], meta["mean"], meta["std"])
    return backbone.to(device)
