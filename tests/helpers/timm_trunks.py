"""Small image towers of timm, one of each kind that methods train, registered as ``small_siglip`` and so on."""

from collections.abc import Callable
from typing import Any

from timm.models import register_model
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

SMALL = {"img_size": 32, "patch_size": 8, "depth": 2, "num_heads": 2}
ROTARY = {"use_rot_pos_emb": True, "ref_feat_shape": (4, 4)}


@register_model  # type: ignore[untyped-decorator]
def small_siglip(pretrained: bool = False, *, num_classes: int = 0, **changes: Any) -> VisionTransformer:
    """Build SigLIP: no class token, no projection, and attention that pools the tokens."""
    own = {"class_token": False, "global_pool": "map", "act_layer": "gelu_tanh", "embed_dim": 16}
    return VisionTransformer(num_classes=num_classes, **SMALL | own | _own(changes))


@register_model  # type: ignore[untyped-decorator]
def small_pe(pretrained: bool = False, *, num_classes: int = 16, **changes: Any) -> Eva:
    """Build PE-Core: rotary embedding, attention that pools the tokens, and a projection with a bias."""
    own = {"global_pool": "map", "attn_type": "rope", "use_pre_transformer_norm": True, "attn_pool_num_heads": 2,
           "attn_pool_mlp_ratio": 4.0, "embed_dim": 32}  # fmt: skip
    return Eva(num_classes=num_classes, **SMALL | ROTARY | own | _own(changes))


@register_model  # type: ignore[untyped-decorator]
def small_eva02(pretrained: bool = False, *, num_classes: int = 16, **changes: Any) -> Eva:
    """Build EVA-02: rotary embedding, separate query, key and value, and a gated MLP."""
    own = {"global_pool": "token", "qkv_fused": False, "swiglu_mlp": True, "scale_mlp": True, "mlp_ratio": 8 / 3,
           "embed_dim": 32}  # fmt: skip
    return Eva(num_classes=num_classes, **SMALL | ROTARY | own | _own(changes))


def _own(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model without those that timm adds about pre-trained weights."""
    told = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
    return {name: value for name, value in changes.items() if name not in told and value != ""}


TRUNKS: dict[str, Callable[..., Any]] = {"siglip": small_siglip, "pe": small_pe, "eva02": small_eva02}
