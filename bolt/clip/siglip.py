"""Converts SigLIP and SigLIP 2 of Hugging Face transformers (``SiglipModel``) to open_clip's form.

open_clip takes the image tower from timm. In the blocks, timm fuses the query, key and value matrices, which are
separate in transformers. In the head that pools the image tokens, transformers fuses all three matrices, and timm fuses
only the key and value matrices.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bolt.clip.huggingface import TEXT, VISION, take_blocks

PROBE = "vision_model.head.probe"
"""Name of a tensor that only SigLIP has: the query that pools the image tokens."""

_IN_BLOCKS = (
    (r"transformer\.resblocks", "trunk.blocks"),
    (r"\.ln_(\d)\.", r".norm\1."),
    (r"attn\.in_proj_", "attn.qkv."),
    (r"attn\.out_proj", "attn.proj"),
    (r"mlp\.c_fc", "mlp.fc1"),
    (r"mlp\.c_proj", "mlp.fc2"),
)
_IMAGE = {
    "embeddings.patch_embedding.": "trunk.patch_embed.proj.",
    "post_layernorm.": "trunk.norm.",
    "head.attention.out_proj.": "trunk.attn_pool.proj.",
    "head.layernorm.": "trunk.attn_pool.norm.",
    "head.mlp.fc": "trunk.attn_pool.mlp.fc",
}
_TEXT = {
    "embeddings.token_embedding.": "token_embedding.",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.": "ln_final.",
    "head.": "text_projection.",
}


def siglip_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return open_clip's model configuration for the ``config.json`` of a ``SiglipModel``.

    Raises ``ValueError`` if open_clip has no SigLIP with these sizes and this vocabulary.
    """
    import open_clip  # takes seconds to import
    import timm

    vision, text = ({**(config.get(f"{tower}_config") or {})} for tower in ("vision", "text"))
    side = vision.get("image_size", 224)
    wanted = (
        vision.get("patch_size", 16), vision.get("hidden_size", 768), text.get("hidden_size", 768),
        text.get("num_hidden_layers", 12), text.get("vocab_size", 32000),
    )  # fmt: skip
    fitting = []
    for name in open_clip.list_models():
        found = dict(open_clip.get_model_config(name))
        own, image = found["text_cfg"], found["vision_cfg"]
        patch = re.search(r"patch(\d+)_siglip", image.get("timm_model_name", ""))
        text_sizes = tuple(own.get(key) for key in ("width", "layers", "vocab_size"))
        if patch and wanted == (int(patch[1]), found["embed_dim"], *text_sizes):
            fitting.append(found)
    for found in sorted(fitting, key=lambda each: bool(each["vision_cfg"]["image_size"] != side)):
        image = found["vision_cfg"]
        trunk = re.sub(r"\d+$", str(side), image["timm_model_name"])  # open_clip has SigLIP 2 at 378, not at 384
        if timm.is_model(trunk):
            return found | {"vision_cfg": image | {"image_size": side, "timm_model_name": trunk}}
    sizes = "patches of {}, a width of {}, a text tower of width {} with {} layers, {:,} tokens".format(*wanted)
    raise ValueError(f"open_clip has no SigLIP with images of {side}, {sizes}")


def siglip_from_huggingface(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the tensors of a ``SiglipModel`` to open_clip's names. Unknown names are kept."""
    image, text = (
        {name.removeprefix(tower): tensor for name, tensor in tensors.items() if name.startswith(tower)}
        for tower in (VISION, TEXT)
    )
    found = {name: tensors[name] for name in ("logit_scale", "logit_bias") if name in tensors}
    for name, tensor in take_blocks(image).items():
        for pattern, own in _IN_BLOCKS:
            name = re.sub(pattern, own, name)
        found[f"visual.{name}"] = tensor
    pool = "visual.trunk.attn_pool."
    for part in ("weight", "bias"):
        if (fused := image.pop(f"head.attention.in_proj_{part}", None)) is not None:
            query, *others = fused.chunk(3)
            found |= {f"{pool}q.{part}": query.clone(), f"{pool}kv.{part}": torch.cat(others)}
    for name, own in (("embeddings.position_embedding.weight", "pos_embed"), ("head.probe", "attn_pool.latent")):
        if name in image:
            tensor = image.pop(name)
            found[f"visual.trunk.{own}"] = tensor.reshape(1, -1, tensor.shape[-1])
    found |= {f"text.{name}": tensor for name, tensor in take_blocks(text).items()}
    found |= {f"visual.{_renamed(name, _IMAGE)}": tensor for name, tensor in image.items()}
    return found | {f"text.{_renamed(name, _TEXT)}": tensor for name, tensor in text.items()}


def _renamed(name: str, starts: Mapping[str, str]) -> str:
    return next((own + name.removeprefix(start) for start, own in starts.items() if name.startswith(start)), name)
