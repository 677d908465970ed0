"""CLIP's image tower, in which every weight matrix is a plain ``nn.Linear``.

In open_clip the attention projections are raw tensors of ``nn.MultiheadAttention``, and the output projection is a bare
parameter. So no adapter can be attached to these matrices: a LoRA around ``attn.out_proj`` has no effect and gives no
error. Here every matrix is an ``nn.Linear``, and the outputs are the same. State dictionaries use open_clip's tensor
names (:mod:`bolt.clip.tensor_names`).

Shape legend: B images, S image side, T tokens (the class token first), W width, H heads, D embedding width, J blocks
with prompts, K tokens of a prompt.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bolt.clip.precision import forward_pass
from bolt.clip.recomputation import QuickGELU, linear_after
from bolt.clip.tensor_names import (
    BLOCKS,
    DEEP_PROMPTS,
    PROJECTION,
    TensorMismatch,
    check_tensors,
    matrix_module_paths,
    tensor_names,
)
from bolt.clip.tower_shape import BlockShape, TowerShape, shape_from_open_clip
from bolt.protocol import Precision


class SelfAttention(nn.Module):
    """Multi-head self-attention with a fused query-key-value projection, whose rows have open_clip's order.

    If ``causal``, a token attends to itself and to the tokens before it only, as in the text tower.
    """

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTW: Tensor, norm: nn.Module, outputs: int) -> Tensor:
        """Return the attention of the first ``outputs`` tokens of ``norm(x_BTW)``: (B, T, W) -> (B, outputs, W)."""
        projected = linear_after(norm, x_BTW, self.qkv)
        heads = projected.view(*projected.shape[:2], 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query[:, :, :outputs], key, value, is_causal=self.causal)
        return cast(Tensor, self.out(mixed.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """One pre-norm transformer block of an image tower or, if ``causal``, of a text tower."""

    def __init__(self, shape: BlockShape, causal: bool = False) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.attn = SelfAttention(shape.width, shape.heads, causal)
        self.ln_2 = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.c_fc = nn.Linear(shape.width, shape.mlp_width)
        self.activation = QuickGELU() if shape.activation == "quick_gelu" else nn.GELU()
        self.c_proj = nn.Linear(shape.mlp_width, shape.width)

    def forward(self, x_BTW: Tensor, outputs: int) -> Tensor:
        """Return the block output of the first ``outputs`` tokens: (B, T, W) -> (B, outputs, W)."""
        x = x_BTW[:, :outputs] + self.attn(x_BTW, self.ln_1, outputs)
        hidden = linear_after(self.ln_2, x, self.c_fc)
        return cast(Tensor, x + linear_after(self.activation, hidden, self.c_proj))


def put_prompt(x_BTW: Tensor, prompts_JKW: Tensor | None, block: int, at: int) -> Tensor:
    """Return the input of block number ``block`` with the block's prompt in place of K tokens from position ``at``.

    If the block has no prompt, its input is returned unchanged.
    """
    if prompts_JKW is None or block >= len(prompts_JKW):
        return x_BTW
    prompt_BKW = prompts_JKW[block].to(x_BTW.dtype).expand(len(x_BTW), -1, -1)
    return torch.cat([x_BTW[:, :at], prompt_BKW, x_BTW[:, at + prompt_BKW.shape[1] :]], dim=1)


class Tower(nn.Module):
    """What image towers and text towers share.

    Attributes:
        precision: number format of the matrix products; copies inherit it. ``None`` is the device's default.
        prompts: learned tokens (J, K, W), K for each of the first J blocks. ``None`` if there are no learned tokens, as
            in CLIP.
        block_names: prefix of the tensor names of a block, before the block's number.
    """

    block_names: ClassVar[str] = BLOCKS

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        self.precision: Precision | None = None
        self.prompts: nn.Parameter | None = None

    def matrix_paths(self) -> dict[str, str]:
        """Map open_clip's names of the weight matrices to this module's linear modules, in network order."""
        return matrix_module_paths(self.shape.layers)

    def place(self, path: str, tensor: Tensor) -> None:
        """Use a tensor as the frozen parameter at ``path``, without copying the tensor."""
        owner, _, attribute = path.rpartition(".")
        setattr(self.get_submodule(owner), attribute, nn.Parameter(tensor.detach(), requires_grad=False))

    def copy(self) -> Self:
        """Return a copy that shares all tensors; adapters can be attached to the copy."""
        shared = {id(tensor): tensor for tensor in self.parameters()}
        return copy.deepcopy(self, memo=shared)  # deepcopy does not copy what its memo holds

    def with_prompts(self, prompts_JKW: Tensor) -> Self:
        """Return a copy with these learned tokens, which are trainable. All other tensors are shared.

        Raises ``TensorMismatch`` if the tokens do not fit, and ``UnsupportedTower`` if the transformer is not CLIP's.
        """
        found, shape = tuple(prompts_JKW.shape), self.shape
        if prompts_JKW.ndim != 3 or found[2] != shape.width or not 1 <= found[0] <= shape.layers:
            raise TensorMismatch(
                f"deep prompts {found} do not fit a tower of {shape.layers} blocks and width {shape.width}"
            )
        clone = self.copy()
        clone.prompts = nn.Parameter(prompts_JKW.detach())
        return clone


class ImageTower(Tower):
    """A vision transformer: normalised images (B, 3, S, S) -> raw joint embeddings (B, D).

    Its learned tokens follow the patches (deep visual prompts, Jia et al., 2022, arXiv:2203.12119).
    """

    shape: TowerShape

    def __init__(self, shape: TowerShape) -> None:
        super().__init__(shape)
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
        """Convert an open_clip ``VisionTransformer`` to a frozen tower in evaluation mode.

        The two towers share all tensors except ``proj``, which is transposed. Raises ``UnsupportedTower`` for any other
        architecture.
        """
        tensors = {name: tensor.detach() for name, tensor in visual.state_dict().items()}
        return cls.from_tensors(shape_from_open_clip(visual), tensors)

    @classmethod
    def from_tensors(cls, shape: TowerShape, tensors: Mapping[str, Tensor]) -> ImageTower:
        """Return a frozen tower in evaluation mode that shares the given tensors, except ``proj``.

        ``tensors`` have open_clip's names; deep prompts may be among them. Raises ``TensorMismatch``, which lists the
        first missing, unexpected and wrongly shaped tensors.
        """
        with torch.device("meta"):  # allocates no memory and draws no random numbers
            tower = cls(shape)
            if DEEP_PROMPTS in tensors:
                tower = tower.with_prompts(tensors[DEEP_PROMPTS])
        tower._check(tensors)
        for name, path in tower.tensor_paths().items():
            tower.place(path, tensors[name].T.contiguous() if name == PROJECTION else tensors[name])
        return tower.eval()

    def forward(self, images_B3SS: Tensor) -> Tensor:
        """Return raw (not normalised) embeddings, (B, D)."""
        with forward_pass(self.precision, images_B3SS.device):
            features_BD = self._encode(images_B3SS)
        return features_BD.float() if self.precision == "bfloat16" else features_BD

    def _encode(self, images_B3SS: Tensor) -> Tensor:
        patches_BTW = self.conv1(images_B3SS).flatten(2).transpose(1, 2)
        class_token = self.class_embedding.to(patches_BTW.dtype).expand(len(patches_BTW), 1, -1)
        x = torch.cat([class_token, patches_BTW], dim=1) + self.positional_embedding.to(patches_BTW.dtype)
        plain = x.shape[1]
        x = self.ln_pre(put_prompt(x, self.prompts, 0, plain))
        tokens = x.shape[1]
        for index, block in enumerate(self.blocks):
            x = put_prompt(x, self.prompts, index, plain) if index else x
            # Only the class token is read after the last block, so only it is computed there.
            x = block(x, 1 if index == self.shape.layers - 1 else tokens)
        return cast(Tensor, self.proj(self.ln_post(x[:, 0])))

    def embed_with(self, tensors: Mapping[str, Tensor], images_B3SS: Tensor) -> Tensor:
        """Return the embeddings (B, D) that the tower gives with these tensors in place of its own.

        The embeddings are differentiable in the tensors, which have the names and shapes of :meth:`own_tensors`.
        """
        path = self.tensor_paths()
        placed = {path[name]: tensor for name, tensor in tensors.items()}
        return cast(Tensor, torch.func.functional_call(self, placed, (images_B3SS,)))

    def tensor_paths(self) -> dict[str, str]:
        """Map the names of :meth:`state_dict_open_clip` to this module's parameters, in network order."""
        return tensor_names(self.shape.layers) | ({} if self.prompts is None else {DEEP_PROMPTS: "prompts"})

    def own_tensors(self) -> dict[str, Tensor]:
        """Return every tensor by open_clip's name, detached but not copied. Here ``proj`` is (embed, width)."""
        own = dict(self.named_parameters())
        return {name: own[path].detach() for name, path in self.tensor_paths().items()}

    def state_dict_open_clip(self) -> dict[str, Tensor]:
        """Return every tensor by its name in open_clip's *visual* tower, detached; only ``proj`` is a copy."""
        own = self.own_tensors()
        return {name: tensor.T.contiguous() if name == PROJECTION else tensor for name, tensor in own.items()}

    def load_open_clip(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the values of all tensors, which have open_clip's names, into this tower.

        Raises ``TensorMismatch``, which lists the first missing, unexpected and wrongly shaped tensors.
        """
        self._check(tensors)
        for name, own in self.own_tensors().items():
            own.copy_(tensors[name].T if name == PROJECTION else tensors[name])

    def copy(self, trainable: Iterable[str] = ()) -> Self:
        """Return a copy in which the ``trainable`` tensors are new and trainable. All other tensors are shared.

        Names are those of :meth:`state_dict_open_clip`, so ``copy(tower.state_dict_open_clip())`` makes every tensor
        trainable. Shared tensors are frozen in the copy, so training it never changes the original.
        """
        names = self.tensor_paths()
        wanted = {names[name] for name in trainable}
        shared = {id(tensor): tensor for name, tensor in self.named_parameters() if name not in wanted}
        clone = copy.deepcopy(self, memo=shared)  # deepcopy does not copy what its memo holds
        for name, tensor in clone.named_parameters():
            tensor.requires_grad_(name in wanted)
        return clone

    def replaced(self, tensors: Mapping[str, Tensor]) -> ImageTower:
        """Return a frozen copy with these values. All other tensors are shared.

        Names are open_clip's. The values have the orientation of this module: ``proj`` is (embed, width).
        """
        clone = self.copy(tensors).requires_grad_(False)
        own = clone.own_tensors()
        for name, tensor in tensors.items():
            own[name].copy_(tensor.detach())
        return clone

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        own = {name: tuple(tensor.shape) for name, tensor in self.own_tensors().items()}
        check_tensors(tensors, own | {name: own[name][::-1] for name in own if name == PROJECTION})


def replace_tensors(frozen: ImageTower, tensors: Mapping[str, Tensor]) -> ImageTower:
    """Return a copy of a frozen tower in which ``tensors``, by open_clip's names, replace the tower's own.

    The copy shares all other tensors. Deep prompts can be among the new tensors.

    Raises ``TensorMismatch`` if tensors do not fit.
    """
    if DEEP_PROMPTS in tensors:
        frozen = frozen.with_prompts(tensors[DEEP_PROMPTS])
    state = frozen.state_dict_open_clip()
    check_tensors({**state, **tensors}, {name: tuple(tensor.shape) for name, tensor in state.items()})
    return frozen.replaced({name: tensor.T if name == PROJECTION else tensor for name, tensor in tensors.items()})


def tower_digest(tower: ImageTower) -> str:
    """Return 16 hexadecimal digits of a SHA-256 over the activation and the names, shapes and values of all tensors."""
    digest = hashlib.sha256(tower.shape.activation.encode())
    for name, tensor in tower.state_dict_open_clip().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def matrix_modules(tower: Tower) -> dict[str, nn.Linear]:
    """Map open_clip's names of the weight matrices to the tower's linear modules, in network order.

    The matrix is the module's ``weight`` (out, in). Only ``proj`` is transposed in open_clip: (width, embed).
    """
    return {name: cast(nn.Linear, tower.get_submodule(path)) for name, path in tower.matrix_paths().items()}


def replace_matrix(tower: Tower, name: str, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """Replace the linear module of the matrix ``name`` by ``make(linear)``; return the new module."""
    path = tower.matrix_paths()[name]
    module = make(cast(nn.Linear, tower.get_submodule(path)))
    tower.set_submodule(path, module)
    return module
