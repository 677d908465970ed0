"""Low-rank adapters (LoRA, DoRA) for weight matrices, and the choice of the matrices and blocks that get one.

``peft`` has such layers too, and tests check that its layers and these give the same bits. ``peft`` is not used here:
it imports transformers, torchvision and SciPy, which costs a worker process 2.4 seconds and 240 MiB.

Shape legend: r rank, (m, n) a weight matrix (out, in).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bolt.clip.text_tower import TextTower
from bolt.clip.tower import Tower, matrix_modules, replace_matrix
from bolt.seeds import isolated_torch_rng
from bolt.spectral.directions import directions_per_source
from bolt.util.ranges import EACH_ONCE, AtLeast0, AtLeast1, Below1, Checked, some_of

_BOLT_DIRECTIONS = 12
"""How many singular directions BOLT takes per source and matrix by default (its setting ``top_k``). BOLT trains one
coefficient per direction. ``match_sources`` limits the adapters to as many parameters as BOLT has coefficients."""

_TARGETS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "q": (("attn.in_proj_weight", ".q"), ("attn.qkv.weight", ".q"), ("attn.q_proj.weight", "")),
    "k": (("attn.in_proj_weight", ".k"), ("attn.qkv.weight", ".k"), ("attn.k_proj.weight", "")),
    "v": (("attn.in_proj_weight", ".v"), ("attn.qkv.weight", ".v"), ("attn.v_proj.weight", "")),
    "out": (("attn.out_proj.weight", ""), ("attn.proj.weight", "")),
    "c_fc": (("mlp.c_fc.weight", ""), ("mlp.fc1.weight", ""), ("mlp.fc1_g.weight", ""), ("mlp.fc1_x.weight", "")),
    "c_proj": (("mlp.c_proj.weight", ""), ("mlp.fc2.weight", "")),
}
"""Target, such as ``q`` -> pairs (name, part), one for each way to name the target's matrix in a block of open_clip or
timm. If ``name`` is the fused query-key-value matrix, ``part`` is the target's sub-module of :class:`SplitProjection`:
``.q``, ``.k`` or ``.v``. For any other matrix, ``part`` is empty."""


@dataclass(frozen=True)
class AdapterSettings(Checked):
    """The form of the adapters, and which matrices have one.

    Attributes:
        rank, alpha: the update of a matrix is ``alpha / rank * B A``.
        rank_stabilised: whether the factor of ``B A`` is ``alpha / sqrt(rank)`` instead of ``alpha / rank`` (rsLoRA).
        dropout: share of an adapter's inputs that is set to zero in training. The adapters of query, key and value
            drop different inputs.
        targets: which matrices of a block have an adapter: q, k, v, out (attention), c_fc, c_proj (MLP).
        last_blocks: adapters are attached to this many blocks at the end of a tower; 0 means all blocks.
        match_sources: a number of sources. The image tower's adapters may have at most as many parameters as BOLT has
            coefficients with this number of sources. Blocks are adapted from the last one backwards, as long as the
            adapters stay within this limit. 0 sets no limit.
    """

    rank: AtLeast1 = 16
    alpha: AtLeast1 = 16
    rank_stabilised: bool = False
    dropout: Below1 = 0.0
    targets: Annotated[tuple[str, ...], some_of(_TARGETS), EACH_ONCE] = tuple(_TARGETS)
    last_blocks: AtLeast0 = 0
    match_sources: AtLeast0 = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last_blocks and self.match_sources:
            raise ValueError("last_blocks and match_sources exclude each other: one of them must be 0")


def bolt_coefficient_count(tower: Tower, sources: int) -> int:
    """Count the coefficients that BOLT trains on a tower: 12 per matrix and source, fewer if a matrix is too small."""
    limits = [min(matrix.in_features, matrix.out_features) for matrix in matrix_modules(tower).values()]
    return sum(sources * directions_per_source(_BOLT_DIRECTIONS, limit, sources) for limit in limits)


def parameters_per_block(tower: Tower, settings: AdapterSettings, dora: bool = False) -> int:
    """Count the parameters of one block's adapters: r (m + n) per matrix, and m more with DoRA."""
    paths, count = tower.matrix_paths(), 0
    for name, part in block_targets(tower, 0, settings):
        m, n = tower.get_submodule(paths[name]).get_parameter("weight").shape
        m = m // 3 if part else m
        count += settings.rank * (m + n) + (m if dora else 0)
    return count


def block_targets(tower: Tower, index: int, settings: AdapterSettings) -> list[tuple[str, str]]:
    """Return (name, part) of each matrix of block ``index`` that gets an adapter.

    ``part`` is ``.q``, ``.k`` or ``.v`` if the adapter is on that part of a fused query-key-value matrix, else empty.
    """
    known = tower.matrix_paths()
    named = [
        (f"{tower.block_names}.{index}.{matrix}", part)
        for target in settings.targets
        for matrix, part in _TARGETS[target]
    ]
    return [(name, part) for name, part in named if name in known]


def adapted_blocks(tower: Tower, settings: AdapterSettings, dora: bool = False) -> int:
    """Return how many blocks at the end of the tower have adapters.

    Raises ``ValueError`` if ``last_blocks`` exceeds the tower's blocks, or if ``match_sources`` allows fewer
    parameters than the adapters of one block have.
    """
    layers = tower.shape.layers
    if settings.last_blocks > layers:
        raise ValueError(f"last_blocks is {settings.last_blocks}, and the tower has {layers} blocks")
    if isinstance(tower, TextTower) or not settings.match_sources:
        return settings.last_blocks or layers
    budget, cost = bolt_coefficient_count(tower, settings.match_sources), parameters_per_block(tower, settings, dora)
    if cost > budget:
        raise ValueError(
            f"match_sources {settings.match_sources} allows {budget} parameters, the number of BOLT's coefficients, "
            f"but the adapters of a single block have {cost}: take a lower rank or fewer targets"
        )
    return min(layers, budget // cost)


def attach_adapters(
    root: nn.Module, paths: Sequence[str], settings: AdapterSettings, dora: bool, *axes: str | int
) -> None:
    """Attach an adapter to each linear module at ``paths``, and freeze all other parameters of ``root``.

    ``axes`` seed the random initialisation. Raises ``ValueError`` if there is no module at one of the paths.
    """
    root.requires_grad_(False)
    modules = [path for path, _ in root.named_modules()]
    scaling = settings.alpha / (math.sqrt(settings.rank) if settings.rank_stabilised else settings.rank)
    with isolated_torch_rng("lora", "adapters", *axes):
        for path in sorted(paths, key=modules.index):  # so the random numbers do not depend on the order of ``paths``
            frozen = cast(nn.Linear, root.get_submodule(path))
            adapter = LowRankLinear(frozen, settings.rank, scaling, dropout=settings.dropout, dora=dora)
            root.set_submodule(path, adapter.train(root.training))


def attach_to_tower(tower: Tower, settings: AdapterSettings, dora: bool, *axes: str | int) -> dict[str, str]:
    """Attach the adapters to a tower; return the adapted matrices, open_clip name -> module path.

    A fused query-key-value matrix is split first, so that each part can have its own adapter. Raises the errors of
    :func:`adapted_blocks`.
    """
    layers, known = tower.shape.layers, tower.matrix_paths()
    paths: list[str] = []
    matrices: dict[str, str] = {}
    for index in range(layers - adapted_blocks(tower, settings, dora), layers):
        for name, part in block_targets(tower, index, settings):
            if part and name not in matrices:
                replace_matrix(tower, name, SplitProjection)
            matrices[name] = known[name]
            paths.append(known[name] + part)
    attach_adapters(tower, paths, settings, dora, *axes)
    return matrices


def merged_weight(module: nn.Module) -> Tensor:
    """Return the weight (m, n) of a linear module, a :class:`SplitProjection` or a :class:`LowRankLinear`, detached.

    For a linear module, this is the module's tensor itself. For the other two, it is a new tensor.
    """
    if isinstance(module, SplitProjection):
        return torch.cat([merged_weight(part) for part in (module.q, module.k, module.v)])
    if isinstance(module, LowRankLinear):
        return module.merged_weight()
    return cast(nn.Linear, module).weight.detach()


class LowRankLinear(nn.Module):
    """A frozen linear module with weight W, and a trained update of rank r (LoRA, arXiv:2106.09685).

    The weight becomes ``W + scaling * B A``. With a magnitude (DoRA, arXiv:2402.09353) every row of that sum is scaled
    to a trained length. B starts at zero and the magnitude at the lengths of W's rows, so the untrained module computes
    the same as the frozen one.

    Attributes:
        lora_A, lora_B: A (r, n) and B (m, r).
        magnitude: the lengths of the rows (m), or ``None``.
    """

    def __init__(self, frozen: nn.Linear, rank: int, scaling: float, *, dropout: float, dora: bool) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.scaling = scaling
        self.dropout = dropout
        a, b = torch.empty(rank, frozen.in_features), torch.empty(frozen.out_features, rank)
        # peft draws A, then B, then A again. In the same order, the same seed gives the same A as in peft.
        for factor in (a, b, a):
            nn.init.kaiming_uniform_(factor, a=math.sqrt(5))
        self.lora_A = nn.Parameter(a.to(frozen.weight))
        self.lora_B = nn.Parameter(torch.zeros_like(b).to(frozen.weight))
        self.magnitude = nn.Parameter(torch.linalg.norm(frozen.weight, dim=1)) if dora else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., n) to outputs (..., m), which have the number format of the frozen module's outputs."""
        plain: Tensor = self.frozen(x)
        x = x.to(self.frozen.weight.dtype)
        drops = self.dropout > 0 and self.training
        if drops:
            x = F.dropout(x, self.dropout)
        update = F.linear(F.linear(x, self.lora_A), self.lora_B)
        if self.magnitude is None:
            return plain + update * self.scaling
        if drops:
            without_bias = F.linear(x, self.frozen.weight)
        else:
            without_bias = plain if self.frozen.bias is None else plain - self.frozen.bias
        growth_m = self.magnitude / self._row_lengths()
        change = (growth_m - 1) * without_bias + growth_m * update * self.scaling
        return (plain + change).to(plain.dtype)

    @torch.no_grad()
    def _row_lengths(self) -> Tensor:
        """Return the lengths (m) of the rows of ``W + scaling * B A``, without a gradient (DoRA, section 4.3)."""
        weight: Tensor = self.frozen.weight
        product = F.linear(self.lora_A.T.contiguous(), self.lora_B).T
        lengths: Tensor = torch.linalg.norm(weight + self.scaling * product.to(weight.dtype), dim=1)
        return lengths

    @torch.no_grad()
    def merged_weight(self) -> Tensor:
        """Return, as a new tensor, the weight (m, n) of the plain linear module that has the same outputs.

        The outputs are the same in evaluation mode, where no input is dropped.
        """
        merged: Tensor = self.frozen.weight + (self.lora_B @ self.lora_A) * self.scaling
        if self.magnitude is None:
            return merged
        growth_m: Tensor = self.magnitude / torch.linalg.norm(merged, dim=1)
        return growth_m[:, None] * merged


class SplitProjection(nn.Module):
    """The fused query-key-value projection as three linear modules ``q``, ``k`` and ``v``, each for its own adapter.

    An adapter on the fused (3W, W) matrix would have one factor A for queries, keys and values, and could not leave out
    one of the three. The three modules are frozen and share the fused module's memory, so their weights must not be
    written to. B images, T tokens, W width of the tower.
    """

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        self.q, self.k, self.v = (_split_third(fused, part) for part in range(3))

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Return queries, keys and values, concatenated: (B, T, W) -> (B, T, 3W)."""
        return torch.cat([self.q(x_BTW), self.k(x_BTW), self.v(x_BTW)], dim=-1)


def _split_third(fused: nn.Linear, part: int) -> nn.Linear:
    # On the device "meta", a module allocates no memory and draws no random numbers.
    linear = nn.Linear(fused.in_features, fused.out_features // 3, bias=False, device="meta")
    linear.weight = nn.Parameter(fused.weight.detach().chunk(3)[part], requires_grad=False)
    if fused.bias is not None:
        linear.bias = nn.Parameter(fused.bias.detach().chunk(3)[part], requires_grad=False)
    return linear
