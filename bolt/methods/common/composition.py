"""Weights composed of task vectors, theta0 + sum_n lambda_n tau_n for every tensor, with only the lambdas trained.

Autograd through that sum costs several passes over every task vector. And it runs last what was recorded first: the
gradients of all weights wait in memory until the composition's own turn comes. Here the composed weights are leaves of
the graph instead. As soon as backward has the gradient of one of them, it is contracted with each task vector,
d loss / d lambda_n = <d loss / d theta, tau_n>, and dropped. A step reads the task vectors twice and keeps, beyond
them and the composed weights, the gradient of one tensor.

With maps (aTLAS x K) a tensor's entries fall into K groups, and every group has a coefficient of its own. The task
vectors are then stored group by group, so that each group is the same product of a matrix and a vector.

Shape legend: N task vectors, P composed tensors, M numbers of one tensor, K groups, m x n a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

_CONVERTED = {"cpu": 2**20}
"""Numbers of a half-precision stack converted at once: few enough for a processor's cache."""
_CONVERTED_ELSEWHERE = 2**24


class Composition:
    """Some tensors of a network as functions of N task vectors' coefficients, which start at zero.

    ``loss.backward()`` of a loss computed with :meth:`tensors` adds to ``coefficients.grad``, as if autograd had gone
    through the sum; ``torch.autograd.grad`` cannot, because the composed weights are where its graph ends.

    Attributes:
        names: the composed tensors' names, in the order of the coefficients' second axis.
        coefficients: (N, P, K), the only trainable tensor, float32 unless the base is float64; K = 1 without maps.
    """

    def __init__(
        self,
        base: Mapping[str, Tensor],
        stacks: Mapping[str, Tensor],
        maps: Mapping[str, Tensor] | None = None,
        groups: int = 1,
    ) -> None:
        """
        Args:
            base: the tensors at lambda = 0, of any shape; neither changed nor kept trainable.
            stacks: per name in ``base``, the N task vectors, (N, M) or (N, *shape), of any float type; kept, not
                copied.
            maps: per name in ``stacks``, each entry's group in 0 ... groups - 1, int64 of the tensor's shape. The
                stacks are reordered in place then.
            groups: K.

        Raises:
            ValueError: for no stack at all, or one that does not fit.
        """
        counts = {len(stack) for stack in stacks.values()}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(f"every tensor has the same number of task vectors, at least one, not {sorted(counts)}")
        self.names = tuple(stacks)
        self._blocks = [
            _Block.of(name, base[name], stack, None if maps is None else maps[name], groups)
            for name, stack in stacks.items()
        ]
        first = self._blocks[0]
        self.coefficients = torch.zeros(
            counts.pop(), len(self.names), groups, dtype=first.precision, device=first.base.device
        ).requires_grad_()
        self._composed_of = self.coefficients.detach().clone()
        self._weights: dict[str, Tensor] = {}
        for position, (name, block) in enumerate(zip(self.names, self._blocks, strict=True)):
            weight = block.base.clone(memory_format=torch.contiguous_format).requires_grad_()
            # The hook holds no reference to this object, so that gigabytes never wait for the garbage collector.
            contract = partial(_contract, block, self.coefficients, position)
            weight.register_post_accumulate_grad_hook(contract)  # type: ignore[no-untyped-call]
            self._weights[name] = weight

    def tensors(self) -> dict[str, Tensor]:
        """The composed tensors, for ``torch.func.functional_call``; composed anew only if a coefficient changed.

        They are rewritten in place, so those of an earlier call follow the coefficients too.
        """
        # Values are compared, because the fused optimiser changes them without raising their version counter.
        if not torch.equal(self.coefficients, self._composed_of):
            with torch.no_grad():
                self._composed_of.copy_(self.coefficients)
                for position, block in enumerate(self._blocks):
                    block.compose(self._composed_of[:, position], self._weights[self.names[position]])
        return dict(self._weights)


@dataclass(frozen=True)
class _Block:
    """One composed tensor.

    Attributes:
        base: (m, n) or of any other shape.
        stack_NM: the task vectors, entries sorted by group.
        order_M: where the sorted entries lie in the tensor; ``None`` where they lie as they are.
        pieces: (group, columns of the stack) in products of which the update and the gradient are computed.
        groups: K.
    """

    base: Tensor
    stack_NM: Tensor
    order_M: Tensor | None
    pieces: Sequence[tuple[int, slice]]
    groups: int

    @classmethod
    def of(cls, name: str, base: Tensor, stack: Tensor, map_: Tensor | None, groups: int) -> _Block:
        stack_NM = stack.detach().flatten(1)
        if stack_NM.shape[1] != base.numel() or not stack.is_floating_point():
            raise ValueError(
                f"{name} has {base.numel()} numbers, its task vectors are {stack.dtype} {tuple(stack.shape)}"
            )
        order_M, sizes = None, [base.numel()]
        if map_ is not None:
            if map_.shape != base.shape or not 0 <= int(map_.min()) <= int(map_.max()) < groups:
                raise ValueError(f"the map of {name} holds groups 0 to {groups - 1} in the shape {tuple(base.shape)}")
            order_M = map_.flatten().to(base.device).argsort(stable=True)
            sizes = torch.bincount(map_.flatten(), minlength=groups).tolist()
            for row_M in stack_NM:
                row_M.copy_(row_M[order_M])
        most = base.numel()
        if stack_NM.dtype != _precision(base):
            most = max(1, _CONVERTED.get(base.device.type, _CONVERTED_ELSEWHERE) // len(stack_NM))
        pieces, start = [], 0
        for group, size in enumerate(sizes):
            for at in range(start, start + size, most):
                pieces.append((group, slice(at, min(at + most, start + size))))
            start += size
        return cls(base.detach(), stack_NM, order_M, pieces, groups)

    @property
    def precision(self) -> torch.dtype:
        return _precision(self.base)

    def compose(self, coefficients_NK: Tensor, out: Tensor) -> None:
        """Write base + sum_n lambda_n tau_n into ``out``."""
        update_M = torch.empty(self.base.numel(), dtype=self.precision, device=self.base.device)
        with torch.autocast(self.base.device.type, enabled=False):
            for group, columns in self.pieces:
                part = self.stack_NM[:, columns].to(self.precision)
                torch.mv(part.T, coefficients_NK[:, group], out=update_M[columns])
        if self.order_M is not None:
            update_M = torch.empty_like(update_M).index_copy_(0, self.order_M, update_M)
        torch.add(self.base, update_M.view(self.base.shape), out=out)

    def contract(self, gradient: Tensor) -> Tensor:
        """(N, K): per task vector and group, the product of the tensor's gradient and the task vector."""
        gradient_M = gradient.to(self.precision).flatten()
        if self.order_M is not None:
            gradient_M = gradient_M[self.order_M]
        products_NK = gradient_M.new_zeros(len(self.stack_NM), self.groups)
        with torch.autocast(self.base.device.type, enabled=False):
            for group, columns in self.pieces:
                products_NK[:, group] += self.stack_NM[:, columns].to(self.precision) @ gradient_M[columns]
        return products_NK


def _precision(base: Tensor) -> torch.dtype:
    return torch.promote_types(base.dtype, torch.float32)


def _contract(block: _Block, coefficients: Tensor, position: int, weight: Tensor) -> None:
    """Turn a weight's gradient, just accumulated, into its coefficients' share of theirs."""
    gradient, weight.grad = weight.grad, None
    if gradient is None:
        return
    if coefficients.grad is None:
        coefficients.grad = torch.zeros_like(coefficients)
    coefficients.grad[:, position] += block.contract(gradient)


def compose_by_autograd(
    base: Mapping[str, Tensor], stacks: Mapping[str, Tensor], coefficients_NP: Tensor
) -> dict[str, Tensor]:
    """The same weights the plain way, a sum of scaled tensors for autograd to differentiate.

    What :class:`Composition` is measured against. The sums are in the base's type, so stacks of another type are
    converted, and autograd keeps the converted copies of all of them for its backward.
    """
    composed = {}
    for position, (name, stack) in enumerate(stacks.items()):
        rows = zip(coefficients_NP[:, position], stack, strict=True)
        terms = [coefficient * vector.to(base[name].dtype).view(base[name].shape) for coefficient, vector in rows]
        composed[name] = base[name] + sum(terms)
    return composed
