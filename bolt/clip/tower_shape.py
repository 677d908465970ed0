"""Sizes and activation of image towers and text towers, and how they are read from a model of open_clip."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

Activation = Literal["gelu", "quick_gelu"]


class UnsupportedTower(ValueError):
    """An image tower, a text tower or the scale of their similarity is not supported."""


@dataclass(frozen=True)
class TowerShape:
    """Sizes, activation and layer norm epsilon of a vision transformer. They determine its tensors and computation."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    embed_dim: int
    activation: Activation
    epsilon: float = 1e-5


@dataclass(frozen=True)
class TextShape:
    """Sizes, activation and layer norm epsilon of a text tower. ``context_length`` is in tokens."""

    context_length: int
    vocabulary: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    embed_dim: int
    activation: Activation
    epsilon: float = 1e-5


BlockShape = TowerShape | TextShape
"""A shape with the fields that define transformer blocks: width, heads, MLP width, activation and epsilon."""


def shape_from_open_clip(visual: nn.Module) -> TowerShape:
    """Return the shape of an open_clip vision transformer.

    Raises ``UnsupportedTower``, which names the unsupported part: another class of network, blocks of a custom kind,
    pooling other than the class token, patch dropout, layer scale, no layer norm before the blocks, no output
    projection, images or patches that are not square, or an activation other than GELU and QuickGELU.
    """
    import open_clip.transformer as open_clip_transformer  # takes seconds to import

    if not isinstance(visual, open_clip_transformer.VisionTransformer):
        raise UnsupportedTower(
            f"only open_clip's VisionTransformer can be adapted, and this image tower is a {type(visual).__name__}"
        )
    fields = _block_fields(
        "image",
        list(visual.transformer.resblocks),
        {
            "pooling other than the class token": visual.attn_pool is not None or visual.pool_type != "tok",
            "patch dropout": not isinstance(visual.patch_dropout, nn.Identity),
            "no layer norm before the blocks": not isinstance(visual.ln_pre, nn.LayerNorm),
            "no output projection": visual.proj is None,
            "images or patches that are not square": len({*visual.image_size}) + len({*visual.patch_size}) != 2,
        },
    )
    return TowerShape(
        image_size=visual.image_size[0],
        patch_size=visual.patch_size[0],
        width=visual.conv1.out_channels,
        embed_dim=visual.proj.shape[1],
        **fields,
    )


def text_shape_from_open_clip(text: nn.Module) -> TextShape:
    """Return the shape of open_clip's text tower: the module that has ``token_embedding`` and ``transformer``.

    Raises ``UnsupportedTower``, which names the unsupported part: another class of network, such as Hugging Face's,
    attention without the causal mask, pooling other than the end token, or a projection other than a plain matrix.
    """
    tower: Any = text
    if not all(hasattr(tower, part) for part in ("token_embedding", "transformer", "text_projection", "attn_mask")):
        raise UnsupportedTower(f"only open_clip's text transformer can be adapted, and this is a {type(text).__name__}")
    pool = getattr(tower, "pool_type", None) or getattr(tower, "text_pool_type", None)
    fields = _block_fields(
        "text",
        list(tower.transformer.resblocks),
        {
            "attention without the causal mask": tower.attn_mask is None,
            "pooling other than the end token": pool != "argmax" or getattr(tower, "cls_emb", None) is not None,
            "a projection that is not a plain matrix": not isinstance(tower.text_projection, nn.Parameter),
        },
    )
    return TextShape(
        context_length=tower.positional_embedding.shape[0],
        vocabulary=tower.token_embedding.num_embeddings,
        width=tower.token_embedding.embedding_dim,
        embed_dim=tower.text_projection.shape[1],
        **fields,
    )


def _block_fields(which: str, blocks: list[Any], found: dict[str, bool]) -> dict[str, Any]:
    """Return the fields of a shape that a tower's transformer blocks define, such as ``heads``.

    ``found``: each unsupported part, such as ``patch dropout`` -> whether the tower has this part.

    Raises ``UnsupportedTower`` if the tower has such a part, if the blocks are not open_clip's plain blocks, or
    if they use neither GELU nor QuickGELU.
    """
    import open_clip.transformer as open_clip_transformer  # takes seconds to import

    unsupported = [what for what, is_there in found.items() if is_there]
    if any(type(block) is not open_clip_transformer.ResidualAttentionBlock for block in blocks):
        unsupported.append("blocks of a custom kind")
    elif any(not isinstance(scale, nn.Identity) for block in blocks for scale in (block.ls_1, block.ls_2)):
        unsupported.append("layer scale")
    elif any(block.ln_1.bias is None for block in blocks):
        unsupported.append("layer norms without a bias")
    if unsupported:
        raise UnsupportedTower(f"this {which} tower cannot be adapted: it has {', '.join(unsupported)}")
    mlp, activation = blocks[0].mlp, blocks[0].mlp.gelu
    quick = isinstance(activation, open_clip_transformer.QuickGELU)
    if not quick and not (isinstance(activation, nn.GELU) and activation.approximate == "none"):
        raise UnsupportedTower(f"this {which} tower cannot be adapted: its activation is {activation}")
    return {
        "layers": len(blocks),
        "heads": blocks[0].attn.num_heads,
        "mlp_width": mlp.c_fc.out_features,
        "activation": "quick_gelu" if quick else "gelu",
        "epsilon": blocks[0].ln_1.eps,
    }
