"""Maps open_clip's names of an image tower's tensors to the parameters of :mod:`bolt.clip.tower`.

Task vectors, checkpoints and saved models use the names of open_clip's *visual* tower.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

import torch
from torch import Tensor

from bolt.clip.tower_shape import UnsupportedTower
from bolt.util.ranges import some_of

PROJECTION = "proj"
"""The only matrix that open_clip stores as (in, out), for ``x @ proj``. All other matrices are (out, in)."""

DEEP_PROMPTS = "prompts"
"""Name of the learned tokens :attr:`bolt.clip.tower.ImageTower.prompts`, which open_clip's towers do not have."""

BLOCKS = "transformer.resblocks"
"""Prefix of the tensor names of a transformer block in open_clip; the number of the block follows."""

MATRIX_KINDS = {
    "attention_in": (
        ".attn.in_proj_weight", ".attn.qkv.weight", ".attn.q_proj.weight", ".attn.k_proj.weight",
        ".attn.v_proj.weight", ".attn_pool.q.weight", ".attn_pool.kv.weight",
    ),
    "attention_out": (".attn.out_proj.weight", ".attn.proj.weight", ".attn_pool.proj.weight"),
    "mlp_in": (".mlp.c_fc.weight", ".mlp.fc1.weight", ".mlp.fc1_g.weight", ".mlp.fc1_x.weight"),
    "mlp_out": (".mlp.c_proj.weight", ".mlp.fc2.weight"),
    "projection": (PROJECTION, "head.proj.weight", "trunk.head.weight"),
}  # fmt: skip
"""Kind of weight matrix, as settings call it -> endings of the names of such matrices in open_clip and timm."""

MatrixKinds = Annotated[tuple[str, ...], some_of(MATRIX_KINDS)]
"""The type of a setting that names kinds of weight matrices."""

_BLOCK_MODULES = {
    "ln_1.": "ln_1",
    "attn.in_proj_": "attn.qkv",
    "attn.out_proj.": "attn.out",
    "ln_2.": "ln_2",
    "mlp.c_fc.": "c_fc",
    "mlp.c_proj.": "c_proj",
}
"""Name that a tensor has in a block of open_clip, without ``weight`` or ``bias`` at its end -> name of the module that
holds this tensor in a :class:`bolt.clip.tower.Block`."""

_LAYER_NORM = re.compile(r"ln_.*|norm\d*|fc_norm|norm_pre|[qk]_norm")
_NOT_A_MATRIX = ("text_projection", "positional", "token_embedding")


class TensorMismatch(ValueError):
    """Tensors do not fit the image tower, by their names or shapes."""


def tensor_names(layers: int) -> dict[str, str]:
    """Map open_clip's tensor names to those of :class:`bolt.clip.tower.ImageTower`, in open_clip's order.

    Raises ``UnsupportedTower`` for the shape of a :class:`bolt.clip.feature_tower.FeatureTower`, which has no layers.
    """
    if not layers:
        raise UnsupportedTower("this image tower gives features only: its weight matrices have no names")
    names = {name: name for name in ("class_embedding", "positional_embedding")}
    names[PROJECTION] = "proj.weight"
    names |= {name: name for name in ("conv1.weight", "ln_pre.weight", "ln_pre.bias")}
    for index in range(layers):
        for theirs, own in _BLOCK_MODULES.items():
            for part in ("weight", "bias"):
                names[f"{BLOCKS}.{index}.{theirs}{part}"] = f"blocks.{index}.{own}.{part}"
    return names | {name: name for name in ("ln_post.weight", "ln_post.bias")}


def matrix_module_paths(layers: int) -> dict[str, str]:
    """Map open_clip's matrix names to the paths of the image tower's linear modules, in network order."""
    paths = {
        name: path.removesuffix(".weight")
        for name, path in tensor_names(layers).items()
        if name.startswith(BLOCKS) and name.endswith("weight") and ".ln_" not in name
    }
    return paths | {PROJECTION: "proj"}


def matrix_names(state: Mapping[str, Tensor], kinds: Collection[str] = tuple(MATRIX_KINDS)) -> list[str]:
    """Return the names of the image tower's weight matrices, in the order of ``state``.

    The matrices of a ViT are the visual projection and four in each block: the fused query-key-value, the attention
    output and the two feed-forward matrices. ViT-B has 49, ViT-L/14 has 97. Embeddings do not count.

    Args:
        state: the state dictionary of a visual tower, or of a whole CLIP, whose text tower is ignored.
        kinds: the kinds of matrices to return, from :data:`MATRIX_KINDS`.
    """
    endings = tuple(ending for kind in kinds for ending in MATRIX_KINDS[kind])
    return [
        name
        for name, tensor in _image_tower_tensors(state).items()
        if tensor.ndim == 2 and name.endswith(endings) and not any(part in name for part in _NOT_A_MATRIX)
    ]


def layer_norm_names(state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the weights and biases of the image tower's layer norms.

    ``state``: the state dictionary of a visual tower, or of a whole CLIP, whose text tower is ignored.
    """
    tensors = _image_tower_tensors(state)
    return [name for name in tensors if any(_LAYER_NORM.fullmatch(part) for part in name.split("."))]


def _image_tower_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    whole = any(name.startswith("visual.") for name in state)
    return {name: tensor for name, tensor in state.items() if not whole or name.startswith("visual.")}


def check_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], of: str = "the image tower"
) -> None:
    """Check the names and shapes of a model's tensors.

    Args:
        tensors: the tensors by name.
        expected: name of each tensor of the model -> its shape.
        of: what the error message calls the model.

    Raises:
        TensorMismatch: if names or shapes differ. The message lists the first missing, unexpected and wrongly shaped
            tensors.
    """
    found = {
        "missing": [name for name in expected if name not in tensors],
        "unexpected": [name for name in tensors if name not in expected],
        "of another shape": [
            f"{name} {tuple(tensors[name].shape)} instead of {size}"
            for name, size in expected.items()
            if name in tensors and tuple(tensors[name].shape) != size
        ],
    }
    if problems := [_list_first(what, names) for what, names in found.items() if names]:
        if any(not tensor.numel() for tensor in tensors.values()):
            problems.append("tensors are empty, as in a shard of DeepSpeed: join its shards with its zero_to_fp32.py")
        raise TensorMismatch(f"tensors do not fit {of}: " + "; ".join(problems))


def check_numbers(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Raise ``TensorMismatch`` for quantised, NaN or infinite weights.

    A tensor counts as quantised if it is not floating-point, but the tensor of the same name in ``like`` is.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() < like[name].is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise TensorMismatch(f"{name} holds {kind} numbers: quantised weights cannot be used")
    if wrong := [name for name, tensor in tensors.items() if not tensor.float().isfinite().all()]:
        raise TensorMismatch(f"NaN or infinity in {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else ""))


def holds_again(tensors: Mapping[str, Tensor], prefix: str, others: Iterable[str]) -> bool:
    """Return whether the tensors with a prefix are there again, with each of the other prefixes.

    So a module stores a tower that it holds under several names.
    """
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    pairs = ((tensors.get(other + name), tensor) for other in others for name, tensor in own.items())
    return all(again is not None and torch.equal(again, tensor) for again, tensor in pairs)


def _list_first(what: str, names: list[str]) -> str:
    """Return one line with ``what`` and the first three ``names``.

    Names that differ only in their block number are shown once, with ``*`` for the number.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", name), []).append(name)
    shown = [found[0] if len(found) == 1 else f"{group} ({len(found)} times)" for group, found in groups.items()]
    more = f" and {len(shown) - 3} more kinds" if len(shown) > 3 else ""
    return f"{what}: {', '.join(shown[:3])}{more}"
