"""The architecture of an image tower: its sizes and activation, also read from an open_clip model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

Activation = Literal["gelu", "quick_gelu"]


class UnsupportedTower(ValueError):
    """The architecture of an image tower is not supported."""


@dataclass(frozen=True)
class TowerShape:
    """Sizes, activation and layer norm epsilon of a vision transformer; they fix its tensors and its computation."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    embed_dim: int
    activation: Activation
    epsilon: float = 1e-5


def shape_from_open_clip(visual: nn.Module) -> TowerShape:
    """The shape of an open_clip vision transformer.

    Raises ``UnsupportedTower``, naming what is not supported: another class of network, pooling other than the class
    token, patch dropout, layer scale, or an activation other than GELU and QuickGELU.
    """
    import open_clip.transformer as open_clip_transformer  # takes seconds to import

    if not isinstance(visual, open_clip_transformer.VisionTransformer):
        raise UnsupportedTower(
            f"only open_clip's VisionTransformer can be adapted, this image tower is a {type(visual).__name__}"
        )
    blocks = list(visual.transformer.resblocks)
    unsupported = [
        what
        for what, found in {
            "pooling other than the class token": visual.attn_pool is not None or visual.pool_type != "tok",
            "patch dropout": not isinstance(visual.patch_dropout, nn.Identity),
            "no layer norm before the blocks": not isinstance(visual.ln_pre, nn.LayerNorm),
            "no output projection": visual.proj is None,
            "images or patches that are not square": len({*visual.image_size}) + len({*visual.patch_size}) != 2,
            "blocks of a custom kind": any(
                type(block) is not open_clip_transformer.ResidualAttentionBlock for block in blocks
            ),
        }.items()
        if found
    ]
    if unsupported:
        raise UnsupportedTower(f"this image tower cannot be adapted: it has {', '.join(unsupported)}")
    first = blocks[0]
    if any(not isinstance(scale, nn.Identity) for block in blocks for scale in (block.ls_1, block.ls_2)):
        raise UnsupportedTower("this image tower cannot be adapted: it has layer scale")
    activation: Activation
    if isinstance(first.mlp.gelu, open_clip_transformer.QuickGELU):
        activation = "quick_gelu"
    elif isinstance(first.mlp.gelu, nn.GELU) and first.mlp.gelu.approximate == "none":
        activation = "gelu"
    else:
        raise UnsupportedTower(f"this image tower cannot be adapted: its activation is {first.mlp.gelu}")
    return TowerShape(
        image_size=visual.image_size[0],
        patch_size=visual.patch_size[0],
        width=visual.conv1.out_channels,
        layers=len(blocks),
        heads=first.attn.num_heads,
        mlp_width=first.mlp.c_fc.out_features,
        embed_dim=visual.proj.shape[1],
        activation=activation,
        epsilon=first.ln_1.eps,
    )
