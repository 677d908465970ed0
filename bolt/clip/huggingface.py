"""Converts CLIPs (tensors and configurations) from Hugging Face's form to open_clip's form, and image towers also back.

transformers has separate query, key and value matrices, and stores the projection as (embed, width). open_clip stacks
the three matrices, and stores the projection as (width, embed). The conversion is exact. ``CLIPModel`` and
``CLIPVisionModelWithProjection`` have a projection. ``CLIPVisionModel``, the class of the published fine-tuned models,
has none.

Shape legend: W width, D embedding width.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bolt.clip.tensor_names import PROJECTION, TensorMismatch
from bolt.clip.tower_shape import TowerShape

VISION = "vision_model."
"""Prefix of the image tower's tensor names. A ``CLIPVisionModel`` that transformers 5 wrote has no prefix."""

TEXT = "text_model."
"""Prefix of the text tower's tensor names."""

VISUAL_PROJECTION = "visual_projection.weight"

_OUTSIDE_BLOCKS = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1.weight": "embeddings.patch_embedding.weight",
    "ln_pre.weight": "pre_layrnorm.weight",  # spelled like this in transformers
    "ln_pre.bias": "pre_layrnorm.bias",
    "ln_post.weight": "post_layernorm.weight",
    "ln_post.bias": "post_layernorm.bias",
}
_TEXT_OUTSIDE_BLOCKS = {
    "token_embedding.weight": "embeddings.token_embedding.weight",
    "positional_embedding": "embeddings.position_embedding.weight",
    "ln_final.weight": "final_layer_norm.weight",
    "ln_final.bias": "final_layer_norm.bias",
}
_IN_BLOCK = {
    "ln_1": "layer_norm1",
    "attn.out_proj": "self_attn.out_proj",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

_SHAPE = {
    "image_size": ("image_size", 224),
    "patch_size": ("patch_size", 32),
    "width": ("hidden_size", 768),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "mlp_width": ("intermediate_size", 3072),
    "embed_dim": ("projection_dim", 512),
    "activation": ("hidden_act", "quick_gelu"),
    "epsilon": ("layer_norm_eps", 1e-5),
}
"""Field of a tower's shape -> its key in the configuration of a vision model, and transformers' default."""
_CLIPS = ("clip", "clip_vision_model")
_OF_TRANSFORMERS = {"model_type", "vision_config", "hidden_size"}
"""A ``config.json`` with one of these keys counts as the configuration of a transformers model."""


def from_huggingface(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the image tower of a Hugging Face CLIP to open_clip's names.

    The result has ``proj`` (W, D) only if the model has a projection. Unknown names in the vision model are kept, so
    that :func:`bolt.clip.tensor_names.check_tensors` reports them. Tensors outside the vision model are left out.
    """
    prefix = VISION if any(name.startswith(VISION) for name in tensors) else ""
    return _tower(tensors, prefix, _OUTSIDE_BLOCKS, {PROJECTION: VISUAL_PROJECTION})


def whole_from_huggingface(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert both towers of a Hugging Face ``CLIPModel`` to open_clip's names. Unknown names are kept."""
    found = {f"visual.{name}": tensor for name, tensor in from_huggingface(tensors).items()}
    found |= {name: tensors[name] for name in ("logit_scale",) if name in tensors}
    return found | _tower(tensors, TEXT, _TEXT_OUTSIDE_BLOCKS, {"text_projection": "text_projection.weight"})


def _tower(
    tensors: Mapping[str, Tensor], prefix: str, outside: Mapping[str, str], projection: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, and the projection, by open_clip's names.

    ``outside``, ``projection``: open_clip's names of tensors outside of the blocks -> their names in transformers.
    """
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    own.pop("embeddings.position_ids", None)  # older versions store the positions 0, 1, 2, ...
    found = {ours: own.pop(theirs) for ours, theirs in outside.items() if theirs in own} | take_blocks(own)
    for ours, theirs in projection.items():
        own.pop(theirs, None)
        if theirs in tensors:
            found[ours] = tensors[theirs].T.contiguous()
    return found | own


def take_blocks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move the tensors of the transformer blocks out of ``tensors``; return them by open_clip's names."""
    layers = _layers(tensors, r"encoder\.layers\.(\d+)\.")
    found = {ours: tensors.pop(theirs) for ours, theirs in _block_names(layers).items() if theirs in tensors}
    for ours, separate in _fused_names(layers).items():
        if all(name in tensors for name in separate):
            found[ours] = torch.cat([tensors.pop(name) for name in separate])
    return found


def to_huggingface(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert an image tower's tensors from open_clip's names to a ``CLIPVisionModelWithProjection``.

    No two tensors share memory, as safetensors requires. Raises ``TensorMismatch`` for an unknown name.
    """
    remaining = dict(tensors)
    layers = _layers(remaining, r"transformer\.resblocks\.(\d+)\.")
    names = _OUTSIDE_BLOCKS | _block_names(layers)
    found = {VISION + theirs: remaining.pop(ours).clone() for ours, theirs in names.items() if ours in remaining}
    for ours, separate in _fused_names(layers).items():
        if ours in remaining:
            parts = zip(separate, remaining.pop(ours).chunk(3), strict=True)
            found |= {VISION + name: part.clone() for name, part in parts}
    if PROJECTION in remaining:
        found[VISUAL_PROJECTION] = remaining.pop(PROJECTION).T.contiguous().clone()
    if remaining:
        raise TensorMismatch(f"not tensors of an open_clip image tower: {', '.join(sorted(remaining)[:3])}")
    return found


def _block_names(layers: int) -> dict[str, str]:
    """Map open_clip's names of the blocks' tensors to transformers' names; query, key and value are not included."""
    return {
        f"transformer.resblocks.{index}.{ours}.{part}": f"encoder.layers.{index}.{theirs}.{part}"
        for index in range(layers)
        for ours, theirs in _IN_BLOCK.items()
        for part in ("weight", "bias")
    }


def _fused_names(layers: int) -> dict[str, list[str]]:
    """Map open_clip's names of the fused query-key-value tensors to the names of the three parts in transformers."""
    return {
        f"transformer.resblocks.{index}.attn.in_proj_{part}": [
            f"encoder.layers.{index}.{name}.{part}" for name in _QUERY_KEY_VALUE
        ]
        for index in range(layers)
        for part in ("weight", "bias")
    }


def shape_from_config(config: Mapping[str, Any]) -> TowerShape:
    """Return the tower shape in a ``config.json`` of transformers.

    Args:
        config: configuration of a ``CLIPModel`` (with ``vision_config``) or of a CLIP vision model.

    Raises:
        ValueError: if ``config`` is not from transformers, the model is no CLIP, or the activation is neither ``gelu``
            nor ``quick_gelu``.
    """
    if not config.keys() & _OF_TRANSFORMERS:
        raise ValueError("this is no configuration of transformers")
    if (kind := config.get("model_type", "clip")) not in _CLIPS:
        raise ValueError(f"the model type of the configuration is {kind!r}, not a CLIP")
    vision = config.get("vision_config") or config
    fields: dict[str, Any] = {field: vision.get(key, default) for field, (key, default) in _SHAPE.items()}
    fields["embed_dim"] = config.get("projection_dim", fields["embed_dim"])
    if (activation := fields["activation"]) not in ("gelu", "quick_gelu"):
        raise ValueError(f"the activation is {activation!r}; only 'gelu' and 'quick_gelu' are supported")
    return TowerShape(**fields)


def stated_by_config(config: object, fields: Iterable[str]) -> dict[str, Any]:
    """Return these fields of a tower's shape, from the configuration beside the tower's tensors.

    A field that the configuration of a CLIP lacks gets transformers' default. A field that the configuration of a
    larger model with a CLIP tower, such as LLaVA, lacks is left out, because that model may have other defaults. The
    result is empty if the file configures neither a transformers model nor a model of open_clip.
    """
    model = config.get("model_cfg") if isinstance(config, Mapping) else None
    if isinstance(model, Mapping) and model.keys() >= {"vision_cfg", "text_cfg"}:  # open_clip's own form
        heads, epsilon, _ = heads_and_epsilon(model)
        activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
        config = {"hidden_act": activation, "num_attention_heads": heads, "layer_norm_eps": epsilon, "hidden_size": 0}
    if not isinstance(config, Mapping) or not config.keys() & _OF_TRANSFORMERS:
        return {}
    vision = config.get("vision_config")
    vision = vision if isinstance(vision, Mapping) else config
    keys = {field: _SHAPE[field] for field in fields}
    is_clip = config.get("model_type", "clip") in _CLIPS
    return {field: vision.get(key, default) for field, (key, default) in keys.items() if is_clip or key in vision}


def heads_and_epsilon(config: Mapping[str, Any]) -> tuple[int, float, int]:
    """Return the image tower's heads and epsilon, and the text tower's heads, that a configuration of open_clip states.

    What it does not state has open_clip's default. ``config``: has ``vision_cfg`` and ``text_cfg``.
    """
    vision, text = config["vision_cfg"], config["text_cfg"]
    epsilon = (vision.get("norm_kwargs") or {}).get("eps", 1e-5)
    return vision.get("width", 768) // vision.get("head_width", 64), float(epsilon), int(text.get("heads", TEXT_HEADS))


TEXT_HEADS = 8
"""The number of a text tower's heads if a configuration of open_clip or of transformers' CLIP does not state it."""

_TEXT_DEFAULTS = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": TEXT_HEADS,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
"""The defaults of transformers' CLIPTextConfig."""


def open_clip_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return open_clip's model configuration for the ``config.json`` of a ``CLIPModel``.

    Raises ``ValueError`` if the model is no CLIP, if the activation is neither GELU nor QuickGELU, if the two towers
    have different activations, or if the vocabulary is not CLIP's. The backbone uses open_clip's tokenizer, which has
    CLIP's vocabulary.
    """
    shape, text = shape_from_config(config), {**_TEXT_DEFAULTS, **(config.get("text_config") or {})}
    if text["hidden_act"] != shape.activation:
        raise ValueError(f"the towers have two activations, {shape.activation!r} and {text['hidden_act']!r}")
    if text["vocab_size"] != _TEXT_DEFAULTS["vocab_size"]:
        raise ValueError(f"its vocabulary has {text['vocab_size']} tokens, but CLIP's vocabulary has 49,408")
    return {
        "embed_dim": shape.embed_dim,
        "quick_gelu": shape.activation == "quick_gelu",
        "vision_cfg": {
            "image_size": shape.image_size,
            "patch_size": shape.patch_size,
            "width": shape.width,
            "layers": shape.layers,
            "head_width": shape.width // shape.heads,
            "mlp_ratio": shape.mlp_width / shape.width,
            "norm_kwargs": {"eps": shape.epsilon},
        },
        "text_cfg": {
            "context_length": text["max_position_embeddings"],
            "vocab_size": text["vocab_size"],
            "width": text["hidden_size"],
            "heads": text["num_attention_heads"],
            "layers": text["num_hidden_layers"],
            "mlp_ratio": text["intermediate_size"] / text["hidden_size"],
            "norm_kwargs": {"eps": text["layer_norm_eps"]},
        },
    }


def config_from_shape(shape: TowerShape) -> dict[str, Any]:
    """Return the ``config.json`` of a ``CLIPVisionModelWithProjection`` of this shape."""
    return {
        "architectures": ["CLIPVisionModelWithProjection"],
        "model_type": "clip_vision_model",
        **{key: getattr(shape, field) for field, (key, _) in _SHAPE.items()},
        "num_channels": 3,
        "attention_dropout": 0.0,
    }


def _layers(names: Mapping[str, Tensor], pattern: str) -> int:
    """Return the number of transformer blocks: the highest number that ``pattern`` finds in the names, plus one."""
    found = (re.match(pattern, name) for name in names)
    return 1 + max((int(match[1]) for match in found if match), default=-1)
