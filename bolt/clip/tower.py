"""CLIP's image tower with every weight matrix a plain ``nn.Linear``.

open_clip keeps the attention projections as raw tensors inside ``nn.MultiheadAttention`` and the output projection
as a bare parameter, where no adapter can be hung on them (a LoRA wrapped around ``attn.out_proj`` is silently
dead). Here each of them is a linear module of its own, with the same numbers coming out, and a two-way mapping to
open_clip's tensor names so that checkpoints and task vectors speak one language.

Shape legend: B images, S image side, T tokens (the class token first), W width, H heads, D embedding width.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Activation = Literal["gelu", "quick_gelu"]

PROJECTION = "proj"
"""The one matrix that open_clip stores as (in, out) and applies as ``x @ proj``; all others are (out, in)."""


class UnsupportedTower(ValueError):
    """An image tower this project has no equal for."""


class TensorMismatch(ValueError):
    """A dictionary of tensors that does not fit the tower."""


@dataclass(frozen=True)
class TowerShape:
    """What fixes a tower's tensors and its arithmetic."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    embed_dim: int
    activation: Activation
    epsilon: float = 1e-5


class QuickGELU(nn.Module):
    """The activation of the original CLIP weights, ``x * sigmoid(1.702 x)``."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _QuickGELU.apply(x))


class _QuickGELU(torch.autograd.Function):
    """x * sigmoid(1.702 x) as silu(1.702 x) / 1.702: half the passes over memory, the constants cancel in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled = 1.702 * x
        ctx.save_for_backward(scaled)
        return F.silu(scaled).mul_(1 / 1.702)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (scaled,) = ctx.saved_tensors
        return cast(Tensor, torch.ops.aten.silu_backward(gradients[0], scaled))


class SelfAttention(nn.Module):
    """Multi-head self-attention with a fused query-key-value projection, rows stacked as in open_clip."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTW: Tensor, outputs: int) -> Tensor:
        """The first ``outputs`` tokens of the attention's result, (B, outputs, W)."""
        heads = self.qkv(x_BTW).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query[:, :, :outputs], key, value)
        return cast(Tensor, self.out(mixed.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.attn = SelfAttention(shape.width, shape.heads)
        self.ln_2 = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.c_fc = nn.Linear(shape.width, shape.mlp_width)
        self.activation = QuickGELU() if shape.activation == "quick_gelu" else nn.GELU()
        self.c_proj = nn.Linear(shape.mlp_width, shape.width)

    def forward(self, x_BTW: Tensor, outputs: int) -> Tensor:
        """The first ``outputs`` tokens of the block's result, (B, outputs, W)."""
        x = x_BTW[:, :outputs] + self.attn(self.ln_1(x_BTW), outputs)
        return cast(Tensor, x + self.c_proj(self.activation(self.c_fc(self.ln_2(x)))))


class ImageTower(nn.Module):
    """A vision transformer: normalised images (B, 3, S, S) -> raw joint embeddings (B, D)."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.shape = shape
        tokens = (shape.image_size // shape.patch_size) ** 2 + 1
        self.class_embedding = nn.Parameter(torch.empty(shape.width))
        self.positional_embedding = nn.Parameter(torch.empty(tokens, shape.width))
        self.conv1 = nn.Conv2d(3, shape.width, shape.patch_size, stride=shape.patch_size, bias=False)
        self.ln_pre = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.ln_post = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.proj = nn.Linear(shape.width, shape.embed_dim, bias=False)

    @classmethod
    def from_open_clip(cls, visual: nn.Module) -> ImageTower:
        """The equal of an open_clip ``VisionTransformer``; shares its tensors (all but the transposed ``proj``).

        The tower is frozen and in evaluation mode. Raises ``UnsupportedTower`` for any other architecture.
        """
        shape = _shape_of(visual)
        with torch.device("meta"):  # no memory, and no draw from a global random generator
            tower = cls(shape)
        tower._assign({name: tensor.detach() for name, tensor in visual.state_dict().items()})
        return tower.requires_grad_(False).eval()

    def forward(self, images_B3SS: Tensor) -> Tensor:
        """Raw (not normalised) embeddings, (B, D)."""
        patches_BTW = self.conv1(images_B3SS).flatten(2).transpose(1, 2)
        class_token = self.class_embedding.to(patches_BTW.dtype).expand(len(patches_BTW), 1, -1)
        x = torch.cat([class_token, patches_BTW], dim=1) + self.positional_embedding.to(patches_BTW.dtype)
        x = self.ln_pre(x)
        tokens = x.shape[1]
        for index, block in enumerate(self.blocks):
            # Only the class token is read after the last block, so only it is computed there.
            x = block(x, 1 if index == self.shape.layers - 1 else tokens)
        return cast(Tensor, self.proj(self.ln_post(x[:, 0])))

    def state_dict_open_clip(self) -> dict[str, Tensor]:
        """Every tensor by its name in open_clip's *visual* tower; detached and shared, except ``proj`` (a copy)."""
        own = dict(self.named_parameters())
        return {
            theirs: own[ours].detach().T.contiguous() if theirs == PROJECTION else own[ours].detach()
            for theirs, ours in tensor_names(self.shape.layers).items()
        }

    def load_open_clip(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the values of open_clip-named tensors into this tower.

        Raises ``TensorMismatch`` that lists the first missing, unexpected and wrongly shaped tensors.
        """
        self._check(tensors)
        own = dict(self.named_parameters())
        with torch.no_grad():
            for theirs, ours in tensor_names(self.shape.layers).items():
                own[ours].copy_(tensors[theirs].T if theirs == PROJECTION else tensors[theirs])

    def copy(self, trainable: Iterable[str] = ()) -> ImageTower:
        """A tower with tensors of its own for the ``trainable`` open_clip names, sharing all others.

        Names are those of :meth:`state_dict_open_clip`; ``copy(tower.state_dict_open_clip())`` makes everything
        trainable. Shared tensors stay frozen, so training the copy never moves the original.
        """
        names = tensor_names(self.shape.layers)
        wanted = {names[name] for name in trainable}
        shared = {id(tensor): tensor for name, tensor in self.named_parameters() if name not in wanted}
        twin = copy.deepcopy(self, memo=shared)  # deepcopy returns what its memo holds instead of copying it
        for name, tensor in twin.named_parameters():
            tensor.requires_grad_(name in wanted)
        return twin

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        own = {name: tuple(tensor.shape) for name, tensor in self.named_parameters()}
        expected = {
            theirs: own[ours][::-1] if theirs == PROJECTION else own[ours]
            for theirs, ours in tensor_names(self.shape.layers).items()
        }
        check_fit(tensors, expected)

    def _assign(self, tensors: Mapping[str, Tensor]) -> None:
        """Make the given tensors this tower's own, without copying their values where the layout is the same."""
        self._check(tensors)
        for theirs, ours in tensor_names(self.shape.layers).items():
            value = tensors[theirs].T.contiguous() if theirs == PROJECTION else tensors[theirs]
            owner, _, name = ours.rpartition(".")
            setattr(self.get_submodule(owner), name, nn.Parameter(value, requires_grad=False))


def tower_digest(tower: ImageTower) -> str:
    """Sixteen hexadecimal digits that name a tower's tensors, by open_clip's names, and its activation."""
    digest = hashlib.sha256(tower.shape.activation.encode())
    for name, tensor in tower.state_dict_open_clip().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def tensor_names(layers: int) -> dict[str, str]:
    """open_clip's tensor name -> this tower's, in open_clip's order."""
    names = {name: name for name in ("class_embedding", "positional_embedding")}
    names[PROJECTION] = "proj.weight"
    names |= {name: name for name in ("conv1.weight", "ln_pre.weight", "ln_pre.bias")}
    for index in range(layers):
        theirs, ours = f"transformer.resblocks.{index}.", f"blocks.{index}."
        for their_part, our_part in _BLOCK_TENSORS.items():
            names[theirs + their_part] = ours + our_part
    return names | {name: name for name in ("ln_post.weight", "ln_post.bias")}


_BLOCK_MATRICES = {
    "attn.in_proj_weight": "attn.qkv",
    "attn.out_proj.weight": "attn.out",
    "mlp.c_fc.weight": "c_fc",
    "mlp.c_proj.weight": "c_proj",
}
_BLOCK_TENSORS = {
    "ln_1.weight": "ln_1.weight",
    "ln_1.bias": "ln_1.bias",
    "attn.in_proj_weight": "attn.qkv.weight",
    "attn.in_proj_bias": "attn.qkv.bias",
    "attn.out_proj.weight": "attn.out.weight",
    "attn.out_proj.bias": "attn.out.bias",
    "ln_2.weight": "ln_2.weight",
    "ln_2.bias": "ln_2.bias",
    "mlp.c_fc.weight": "c_fc.weight",
    "mlp.c_fc.bias": "c_fc.bias",
    "mlp.c_proj.weight": "c_proj.weight",
    "mlp.c_proj.bias": "c_proj.bias",
}


def matrix_paths(layers: int) -> dict[str, str]:
    """open_clip's matrix name -> path of the module that holds it, in network order."""
    paths = {
        f"transformer.resblocks.{index}.{theirs}": f"blocks.{index}.{ours}"
        for index in range(layers)
        for theirs, ours in _BLOCK_MATRICES.items()
    }
    return paths | {PROJECTION: "proj"}


def matrix_modules(tower: ImageTower) -> dict[str, nn.Linear]:
    """open_clip's matrix name -> the linear module that holds it, in network order.

    A matrix of task-vector space is open_clip's own tensor. For every name but ``proj`` that is the module's
    ``weight`` (out, in); ``proj`` is stored as (width, embed), the transpose of the module's weight.
    """
    return {name: cast(nn.Linear, tower.get_submodule(path)) for name, path in matrix_paths(tower.shape.layers).items()}


def replace_matrix(tower: ImageTower, name: str, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """Put ``make(linear)`` in the place of one matrix's linear module; returns the new module."""
    owner, _, attribute = matrix_paths(tower.shape.layers)[name].rpartition(".")
    holder = tower.get_submodule(owner)
    module = make(cast(nn.Linear, getattr(holder, attribute)))
    setattr(holder, attribute, module)
    return module


def check_fit(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ``TensorMismatch`` that lists the first missing, unexpected and wrongly shaped tensors.

    ``expected`` maps each open_clip visual name to its shape.
    """
    complaints = [
        *_first("missing", [name for name in expected if name not in tensors]),
        *_first("unexpected", [name for name in tensors if name not in expected]),
        *_first(
            "of another shape",
            [
                f"{name} {tuple(tensors[name].shape)} instead of {size}"
                for name, size in expected.items()
                if name in tensors and tuple(tensors[name].shape) != size
            ],
        ),
    ]
    if complaints:
        raise TensorMismatch("tensors do not fit the image tower: " + "; ".join(complaints))


def _first(what: str, names: list[str], shown: int = 3) -> list[str]:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return [f"{what}: {', '.join(names[:shown])}{more}"] if names else []


def _shape_of(visual: nn.Module) -> TowerShape:
    """The shape of an open_clip vision transformer, or ``UnsupportedTower`` naming what has no equal here."""
    import open_clip.transformer as open_clip_transformer  # seconds to import; a plan never gets here

    if not isinstance(visual, open_clip_transformer.VisionTransformer):
        raise UnsupportedTower(
            f"only open_clip's VisionTransformer can be adapted, this image tower is a {type(visual).__name__}"
        )
    blocks = list(visual.transformer.resblocks)
    strange = [
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
    if strange:
        raise UnsupportedTower(f"this image tower cannot be adapted: it has {', '.join(strange)}")
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
