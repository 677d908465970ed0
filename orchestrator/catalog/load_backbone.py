"""From a catalog entry to a frozen CLIP: finds the weights, checks the activation, never reaches the network."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.catalog import BackboneEntry, grids_folder, missing_weights
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone
    from bolt.clip.tower_shape import TowerShape


def load_backbone(entry: BackboneEntry, device: str, *, swapped: bool = False) -> Backbone:
    """Build the open_clip model of a catalog entry, load its weights and freeze it on ``device``.

    Args:
        entry: as in the catalog, or with the activation swapped.
        swapped: whether it is on purpose that the activation is not the one the weights were trained with.

    Raises:
        UserError: when the weights are not on this machine or do not fit, when the sizes the entry states are not the
            model's, or when the activation is not the one the model was built with or open_clip knows the weights to
            have: OpenAI's weights under plain GELU still run, several points worse, in silence.
    """
    absent = missing_weights(entry)
    if absent is not None:
        raise absent
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # inside cells nothing is fetched; fail at once instead of waiting
    import open_clip

    from bolt.clip.backbone import Backbone

    architecture = entry.architecture
    if architecture.endswith(".json"):
        config = grids_folder() / architecture
        open_clip.add_model_config(config)
        architecture = config.stem
    if entry.weights.pretrained is not None and not swapped:
        _check_tag(entry, architecture, entry.weights.pretrained)
    with _quiet(), _as_user_error(entry, architecture):
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
    _check_sizes(entry, backbone.tower.shape)
    return backbone.to(device)


def swap_activation(entry: BackboneEntry) -> BackboneEntry:
    """The same weights under the other activation: the mistake of newer open_clip versions with OpenAI's weights."""
    return entry.model_copy(update={"quick_gelu": not entry.quick_gelu})


def tag_uses_quick_gelu(architecture: str, tag: str) -> bool | None:
    """Whether open_clip knows its pre-trained weights to need QuickGELU; ``None`` for weights it does not have."""
    import open_clip

    config = open_clip.get_pretrained_cfg(architecture, tag)
    return bool(config.get("quick_gelu", False)) if config else None


def _check_tag(entry: BackboneEntry, architecture: str, tag: str) -> None:
    known = tag_uses_quick_gelu(architecture, tag)
    if known is not None and known != entry.quick_gelu:
        raise UserError(
            f"backbone {entry.name}: the weights {tag} were trained with {'QuickGELU' if known else 'plain GELU'}, "
            "says open_clip, and its catalog entry says otherwise",
            hint=f"write quick_gelu: {'true' if known else 'false'}",
        )


def _check_sizes(entry: BackboneEntry, shape: TowerShape) -> None:
    sizes = {
        "image_size": shape.image_size,
        "patch": shape.patch_size,
        "width": shape.width,
        "layers": shape.layers,
        "embed_dim": shape.embed_dim,
    }
    for name, size in sizes.items():
        if getattr(entry, name) != size:
            raise UserError(
                f"backbone {entry.name} has {name} {size}, its catalog entry says {getattr(entry, name)}",
                hint="`backbones add` fills an entry from the model itself",
            )


@contextlib.contextmanager
def _as_user_error(entry: BackboneEntry, architecture: str) -> Iterator[None]:
    """Weights that are not here or do not fit are the user's to mend."""
    try:
        yield
    except (RuntimeError, OSError, ValueError, pickle.UnpicklingError) as error:
        first = " ".join(str(error).split())[:160]
        if entry.weights.file is not None:
            raise UserError(
                f"the weights of backbone {entry.name} do not fit {architecture}: {first}", where=_weights(entry)
            ) from None
        raise UserError(
            f"the weights {entry.weights.pretrained} of backbone {entry.name} are not on this machine, and nothing is "
            f"fetched while cells run: {first}",
            hint=f"fetch them once: python -c \"import open_clip; open_clip.create_model('{architecture}', "
            f"pretrained='{entry.weights.pretrained}')\"",
        ) from None


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
    root.setLevel(logging.CRITICAL)  # what goes wrong is raised too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
