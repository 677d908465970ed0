"""From a catalog entry to a frozen CLIP: finds the weights, checks the activation, never reaches the network."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.catalog import BackboneEntry, grids_folder, missing_weights
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from bolt.backbone import Backbone


def load_backbone(entry: BackboneEntry, device: str) -> Backbone:
    """Build the open_clip model of a catalog entry, load its weights and freeze it on ``device``.

    Raises ``UserError`` when the weights are not on this machine, or when the activation the entry states is not
    the one the model was built with: OpenAI's weights under plain GELU still run, several points worse, in silence.
    """
    absent = missing_weights(entry)
    if absent is not None:
        raise absent
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # inside cells nothing is fetched; fail at once instead of waiting
    import open_clip

    from bolt.backbone import Backbone

    architecture = entry.architecture
    if architecture.endswith(".json"):
        config = grids_folder() / architecture
        open_clip.add_model_config(config)
        architecture = config.stem
    with _quiet():
        model = open_clip.create_model(
            architecture, pretrained=_weights(entry), force_quick_gelu=entry.quick_gelu, device="cpu"
        )
        tokenizer = open_clip.get_tokenizer(architecture)
    backbone = Backbone.from_open_clip(model, tokenizer, entry.name)
    built, stated = backbone.activation, "quick_gelu" if entry.quick_gelu else "gelu"
    if built != stated:
        raise UserError(
            f"backbone {entry.name} was built with {built}, its catalog entry says {stated}",
            hint="the activation belongs to the weights: set quick_gelu to what they were trained with",
        )
    return backbone.to(device)


def activation_swapped(entry: BackboneEntry) -> BackboneEntry:
    """The same weights under the other activation: the mistake of newer open_clip versions with OpenAI's weights."""
    return entry.model_copy(update={"quick_gelu": not entry.quick_gelu})


def _weights(entry: BackboneEntry) -> str:
    """What open_clip takes as ``pretrained``: a file, or the tag of weights in the local cache."""
    if entry.weights.file is not None:
        path = Path(entry.weights.file)
        return str(path if path.is_absolute() else grids_folder() / path)
    assert entry.weights.pretrained is not None, "the catalog admits a file or a tag"
    return entry.weights.pretrained


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """open_clip warns about random initialisation before it loads a local file; the load itself is checked."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
