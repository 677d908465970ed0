"""Loads a catalog entry as a frozen CLIP, from files on this machine only, and checks its activation and sizes."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.catalog import BackboneEntry, missing_weights
from orchestrator.catalog.references import architecture_path, weights_path
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone
    from bolt.clip.tower_shape import TowerShape


def load_backbone(entry: BackboneEntry, device: str, *, swapped: bool = False) -> Backbone:
    """Build the open_clip model of a catalog entry, load its weights and freeze it on ``device``.

    Args:
        entry: as in the catalog, or with the activation swapped.
        swapped: whether the activation differs on purpose from the one that the weights were trained with.

    Raises:
        UserError: if the weights are not on this machine or do not fit the architecture, if the entry's sizes are not
            the model's, or if its activation is neither that of the built model nor the one that open_clip lists for
            the weights. OpenAI's weights run with plain GELU without any error, several points worse.
    """
    absent = missing_weights(entry)
    if absent is not None:
        raise absent
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # cells fetch nothing: fail at once instead of waiting
    import open_clip

    from bolt.clip.backbone import Backbone

    architecture, config = entry.architecture, architecture_path(entry)
    if config is not None:
        open_clip.add_model_config(config)
        architecture = config.stem
    if entry.weights.pretrained is not None and not swapped:
        _check_tag(entry, architecture, entry.weights.pretrained)
    weights = str(weights_path(entry) or entry.weights.pretrained)
    try:
        with _without_warnings():
            model = open_clip.create_model(
                architecture, pretrained=weights, force_quick_gelu=entry.quick_gelu, device="cpu"
            )
            tokenizer = open_clip.get_tokenizer(architecture)
    except (RuntimeError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise _loading_error(entry, architecture, " ".join(str(error).split())[:160]) from None
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
    """The same weights with the other activation: the error of newer open_clip versions with OpenAI's weights."""
    return entry.model_copy(update={"quick_gelu": not entry.quick_gelu})


def tag_uses_quick_gelu(architecture: str, tag: str) -> bool | None:
    """Whether open_clip lists pre-trained weights as trained with QuickGELU; ``None`` if it does not list them."""
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
    for name in ("image_size", "patch", "width", "layers", "embed_dim"):
        stated, built = getattr(entry, name), getattr(shape, "patch_size" if name == "patch" else name)
        if stated != built:
            raise UserError(
                f"backbone {entry.name} has {name} {built}, its catalog entry says {stated}",
                hint="`backbones add` fills an entry from the model itself",
            )


def _loading_error(entry: BackboneEntry, architecture: str, reason: str) -> UserError:
    """The error that weights are not on this machine, or do not fit the architecture."""
    if path := weights_path(entry):
        return UserError(f"the weights of backbone {entry.name} do not fit {architecture}: {reason}", where=str(path))
    return UserError(
        f"the weights {entry.weights.pretrained} of backbone {entry.name} are not on this machine, and nothing is "
        f"fetched while cells run: {reason}",
        hint=f"fetch them once: python -c \"import open_clip; open_clip.create_model('{architecture}', "
        f"pretrained='{entry.weights.pretrained}')\"",
    )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence open_clip, which warns of random initialisation before it loads a local file."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)  # errors are raised as well
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        root.setLevel(level)
