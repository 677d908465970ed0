"""Filling a catalog entry from what open_clip knows of a model: sizes, activation, cost. No weights are fetched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bolt.clip.checkpoint_files import UnreadableCheckpoint, checkpoint_files
from bolt.clip.huggingface import shape_from_config
from bolt.clip.tower import ImageTower, TowerShape, UnsupportedTower
from orchestrator.catalog import BackboneEntry
from orchestrator.catalog.fields import key_problem
from orchestrator.catalog.load_backbone import load_backbone, tag_uses_quick_gelu
from orchestrator.util.errors import UserError, unknown_name

QUICK = "-quickgelu"
"""Ends the names under which open_clip has a model once more with QuickGELU; an entry says it by ``quick_gelu``."""

_SMALL_TEXT = {"context_length": 8, "vocab_size": 8, "width": 8, "heads": 1, "layers": 1}


@dataclass(frozen=True)
class Wanted:
    """What is to become a backbone.

    Attributes:
        architecture: a model name of open_clip, or the path of a model-config json.
        pretrained: a tag of open_clip, or ``None`` for a file.
        file: open_clip weights (a whole CLIP's), or ``None`` for a tag.
        name: its key; ``None`` makes one of architecture and tag or file.
        quick_gelu: ``None`` where the tag or a configuration beside the file says it.
    """

    architecture: str
    pretrained: str | None
    file: Path | None
    name: str | None = None
    quick_gelu: bool | None = None


def make_entry(wanted: Wanted) -> BackboneEntry:
    """The catalog entry of a backbone; the weights of a file are loaded once, to see that they fit.

    Raises ``UserError`` for an unknown model or tag (with the nearest ones), a tower that cannot be adapted, an
    activation that is not known or contradicts what is, and for a file that does not fit.
    """
    if (wanted.pretrained is None) == (wanted.file is None):
        raise UserError("a backbone needs weights of open_clip or a file", hint="--pretrained TAG or --file PATH")
    architecture, config = _architecture(wanted)
    shape = tower_shape(config, wanted.architecture)
    weights, words, known, said_by = _weights(wanted, architecture)
    if known is None and wanted.quick_gelu is None:
        raise UserError(
            "nothing says which activation these weights were trained with, and under the other one they are wrong "
            "without a sign of it",
            where=str(wanted.file),
            hint="--quick-gelu (OpenAI's weights and what descends from them) or --gelu (LAION's and most others)",
        )
    if known is not None and wanted.quick_gelu not in (None, known):
        stated = "quick_gelu" if known else "gelu"
        raise UserError(f"these weights were trained with {stated}, says {said_by}", where="--quick-gelu/--gelu")
    name = wanted.name or f"{Path(architecture).stem}-{words}".lower()
    if wrong := key_problem(name):
        raise UserError(wrong, where="--name")
    entry = BackboneEntry.model_validate(
        {
            "name": name,
            "title": f"{Path(architecture).stem} ({words})",
            "architecture": architecture,
            "weights": weights,
            "quick_gelu": wanted.quick_gelu if known is None else known,
            "image_size": shape.image_size,
            "embed_dim": shape.embed_dim,
            "width": shape.width,
            "layers": shape.layers,
            "patch": shape.patch_size,
            "gflops_per_image": float(f"{gflops_per_image(shape):.4g}"),
            "parameters": parameters(shape),
        }
    )
    if wanted.file is not None:
        load_backbone(entry, "cpu")
    return entry


def tower_shape(config: dict[str, Any], name: str) -> TowerShape:
    """The shape of the image tower that an open_clip model configuration describes, built without memory.

    Raises ``UserError`` with the reason for a tower that has no equal in :mod:`bolt.clip.tower`.
    """
    import open_clip

    vision = dict(config.get("vision_cfg") or {})
    if vision.get("timm_model_name"):
        raise UserError(f"{name} cannot be adapted: its image tower is one of timm ({vision['timm_model_name']})")
    try:
        with torch.device("meta"):
            model = open_clip.CLIP(config["embed_dim"], vision, _SMALL_TEXT, quick_gelu=bool(config.get("quick_gelu")))
            return ImageTower.from_open_clip(model.visual).shape
    except UnsupportedTower as error:
        raise UserError(f"{name}: {error}") from None
    except (KeyError, TypeError) as error:
        raise UserError(f"{name} is not a model configuration of open_clip: {error!r}") from None


def gflops_per_image(shape: TowerShape) -> float:
    """10^9 floating-point operations of one image's forward pass, a multiply-add counted as two.

    Matrix products, attention and the patch convolution; layer norms, activations and sums are below one per cent.
    """
    patches = (shape.image_size // shape.patch_size) ** 2
    tokens = patches + 1
    convolution = patches * 3 * shape.patch_size**2 * shape.width
    products = tokens * (4 * shape.width**2 + 2 * shape.width * shape.mlp_width)
    attention = 2 * tokens**2 * shape.width
    projection = shape.width * shape.embed_dim
    return 2 * (convolution + shape.layers * (products + attention) + projection) / 1e9


def parameters(shape: TowerShape) -> int:
    """Numbers in the image tower, projection included."""
    with torch.device("meta"):
        return sum(tensor.numel() for tensor in ImageTower(shape).parameters())


def fields_of(entry: BackboneEntry) -> dict[str, Any]:
    """The entry as a catalog file holds it: without its key, and without what is left at its default."""
    return entry.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)


def _architecture(wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """The name or path of the architecture as the entry says it, and its configuration."""
    import open_clip

    name = wanted.architecture
    if name.endswith(".json"):
        path = Path(name).expanduser().absolute()
        try:
            return str(path), dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UserError(f"the model configuration cannot be read: {error}", where=name) from None
    known = open_clip.list_models()
    if name not in known:
        raise unknown_name("model of open_clip", name, known)
    plain = name.removesuffix(QUICK)
    if plain in known and (
        wanted.pretrained is None or wanted.pretrained in open_clip.list_pretrained_tags_by_model(plain)
    ):
        name = plain  # the name alone would fix the activation; an entry states it, and a protocol can swap it
    return name, dict(open_clip.get_model_config(name))


def _weights(wanted: Wanted, architecture: str) -> tuple[dict[str, str], str, bool | None, str]:
    """The entry's ``weights``, a word for them, whether they need QuickGELU if that is known, and who says so."""
    import open_clip

    if wanted.pretrained is not None:
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        if wanted.pretrained not in tags:
            raise unknown_name(f"pre-trained tag of {architecture}", wanted.pretrained, tags, where="--pretrained")
        known = tag_uses_quick_gelu(architecture, wanted.pretrained)
        return {"pretrained": wanted.pretrained}, wanted.pretrained, known, "open_clip"
    assert wanted.file is not None
    try:
        files = checkpoint_files(wanted.file.expanduser())
    except UnreadableCheckpoint as error:
        raise UserError(str(error), where="--file") from None
    if len(files) > 1:
        raise UserError("open_clip reads a backbone from one file, and this one is in parts", where="--file")
    known, said_by = _stated_beside(files[0])
    return {"file": str(files[0].absolute())}, files[0].stem, known, said_by


def _stated_beside(file: Path) -> tuple[bool | None, str]:
    """Whether a configuration beside a file says QuickGELU, and which one; ``None`` where there is none."""
    ours, theirs = file.parent / "open_clip_config.json", file.parent / "config.json"
    try:
        if ours.is_file():
            model = json.loads(ours.read_text(encoding="utf-8"))["model_cfg"]
            return bool(model.get("quick_gelu", False)), str(ours)
        if theirs.is_file():
            shape = shape_from_config(json.loads(theirs.read_text(encoding="utf-8")))
            return shape.activation == "quick_gelu", str(theirs)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None, ""  # a configuration of something else
    return None, ""
