"""A network whose weights are composed of task vectors; only the coefficients of the task vectors are trained.

The composed weights are ``theta0 + sum_n lambda_n tau_n``, tensor by tensor. Differentiating that sum with autograd is
expensive. Autograd makes several passes over every task vector. It also differentiates the sum last, so the gradients
of all weights have to stay in memory until then.

:class:`Composition` therefore makes the composed weights leaves of the graph. As soon as the backward pass has the
gradient of one weight, a hook contracts this gradient with each task vector, ``d loss / d lambda_n = <d loss / d theta,
tau_n>``, and frees the gradient. One training step reads the task vectors twice. Beyond the task vectors and the
composed weights, a step holds the gradient of one tensor at a time.

The entries of a tensor can be split into K groups, each with a coefficient of its own (aTLAS x K). The entries of the
stored task vectors are then sorted by group, so that a group takes one product of a matrix and a vector.

Shape legend: N task vectors, P composed tensors, M numbers of one tensor, K groups, m x n a matrix,
B batch, S image side, D embedding width.
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bolt.clip.tensor_names import PROJECTION
from bolt.clip.tower import ImageTower
from bolt.spectral.sources import Sources
from bolt.training.adaptation import Trainable

_CONVERTED_AT_ONCE = {"cpu": 2**20}
"""Device type -> how many numbers are converted at once. Task vectors in half precision are converted to the precision
in which :class:`Composition` computes its sums. 2^20 converted numbers fit into the cache of a CPU."""
_CONVERTED_AT_ONCE_ELSEWHERE = 2**24


class Composition:
    """Some tensors of a network, composed of their base values and N task vectors with trainable coefficients.

    All coefficients start at zero. If a loss is computed with :meth:`tensors`, ``loss.backward()`` adds the gradient of
    the coefficients to ``coefficients.grad``, as if autograd had differentiated the sum. ``torch.autograd.grad`` cannot
    return this gradient, because the graph ends at the composed weights.

    Attributes:
        names: the composed tensors' names, in the order of the coefficients' second axis.
        coefficients: the only trainable tensor, (N task vectors, P tensors, K groups); float32, or float64 if the base
            is. K is 1 if a tensor's entries are not split into groups, and P is 1 if all tensors share their
            coefficients.
    """

    def __init__(
        self,
        base: Mapping[str, Tensor],
        stacks: Mapping[str, Tensor],
        groups: Mapping[str, Tensor] | None = None,
        group_count: int = 1,
        *,
        tied: bool = False,
        bounds: tuple[float, float] | None = None,
    ) -> None:
        """
        Args:
            base: name -> the tensor at lambda = 0, of any shape. It is neither changed nor made trainable.
            stacks: name -> the N task vectors of the tensor, (N, M) or (N, *shape), of any float type. They are kept,
                not copied.
            groups: name -> the group of each entry, int64 in 0 ... K - 1, of the tensor's shape. With groups, the
                stacks are sorted in place.
            group_count: K, the number of groups.
            tied: whether all tensors share their coefficients.
            bounds: coefficients are clamped to this range before they are used; outside the range they get no gradient.
        """
        self.names = tuple(stacks)
        self._composed = [
            _ComposedTensor(base[name], stack, None if groups is None else groups[name], group_count)
            for name, stack in stacks.items()
        ]
        first = self._composed[0]
        shape = len(first.stack_NM), 1 if tied else len(self.names), group_count
        self.coefficients = torch.zeros(shape, dtype=first.precision, device=first.base.device, requires_grad=True)
        self._shared = _Shared(self.coefficients, bounds)
        self._weights: dict[str, Tensor] = {}
        for position, (name, composed) in enumerate(zip(self.names, self._composed, strict=True)):
            weight = composed.base.clone(memory_format=torch.contiguous_format).requires_grad_()
            # The hook holds no reference to this object: a cycle of references would keep gigabytes in memory until the
            # garbage collector runs.
            contract = partial(_contract, composed, self._shared, 0 if tied else position)
            weight.register_post_accumulate_grad_hook(contract)  # type: ignore[no-untyped-call]
            self._weights[name] = weight

    def tensors(self, recompute: bool = False) -> dict[str, Tensor]:
        """Return the composed tensors by name, for ``torch.func.functional_call``.

        The tensors are computed in the first call, and again in the first call after a backward pass, because an
        optimiser may have changed the coefficients. With ``recompute`` they are always computed. They are written in
        place, so the tensors that an earlier call returned change too.
        """
        if recompute or self._shared.changed:
            self._shared.changed = False
            with torch.no_grad(), torch.autocast(self.coefficients.device.type, enabled=False):
                used_NPK = self.coefficients.detach().expand(-1, len(self.names), -1)
                used_NPK = used_NPK.clamp(*self._shared.bounds) if self._shared.bounds else used_NPK
                for position, composed in enumerate(self._composed):
                    composed.compose(used_NPK[:, position], self._weights[self.names[position]])
        return dict(self._weights)


@dataclass
class _Shared:
    """What :class:`Composition` shares with its hooks.

    Attributes:
        coefficients, bounds: those of the composition.
        changed: whether the coefficients may have changed since the tensors were last composed. It is true before the
            first composition and after every backward pass. The code cannot cheaply tell whether the coefficients did
            change: a fused optimiser does not raise a tensor's version counter, and a comparison of values would make
            the CPU wait for the GPU.
    """

    coefficients: Tensor
    bounds: tuple[float, float] | None
    changed: bool = True


class _ComposedTensor:
    """One composed tensor.

    Attributes:
        base: the tensor's value at lambda = 0, (m, n) or of any other shape.
        precision: the number format of the coefficients and of all sums.
        stack_NM: the task vectors, one in each row. The columns, one for each entry, are sorted by group.
        order_M: for each column, the place of its entry in the flattened tensor; ``None`` if nothing was sorted.
        chunks: pairs (group, columns). ``columns`` is a slice of columns of ``stack_NM``, all of this group. From them,
            the group's coefficients give a part of the update, and the tensor's gradient gives a part of the
            coefficients' gradient.
        group_count: K, the number of groups.
    """

    def __init__(self, base: Tensor, stack: Tensor, groups: Tensor | None, group_count: int) -> None:
        self.base, self.group_count = base.detach(), group_count
        self.precision = torch.promote_types(base.dtype, torch.float32)
        self.stack_NM = stack.detach().flatten(1)
        self.order_M, sizes = None, [base.numel()]
        if groups is not None:
            self.order_M = groups.flatten().to(base.device).argsort(stable=True)
            sizes = torch.bincount(groups.flatten(), minlength=group_count).tolist()
            for row_M in self.stack_NM:
                row_M.copy_(row_M[self.order_M])
        longest = base.numel()
        if self.stack_NM.dtype != self.precision:
            converted = _CONVERTED_AT_ONCE.get(base.device.type, _CONVERTED_AT_ONCE_ELSEWHERE)
            longest = max(1, converted // len(self.stack_NM))
        self.chunks, start = [], 0
        for group, size in enumerate(sizes):
            for at in range(start, start + size, longest):
                self.chunks.append((group, slice(at, min(at + longest, start + size))))
            start += size

    def compose(self, coefficients_NK: Tensor, out: Tensor) -> None:
        """Write base + sum_n lambda_n tau_n into ``out``. The caller must have switched autocast off."""
        update_M = torch.empty(self.base.numel(), dtype=self.precision, device=self.base.device)
        for group, columns in self.chunks:
            part = self.stack_NM[:, columns].to(self.precision)
            torch.mv(part.T, coefficients_NK[:, group], out=update_M[columns])
        if self.order_M is not None:
            update_M = torch.empty_like(update_M).index_copy_(0, self.order_M, update_M)
        torch.add(self.base, update_M.view(self.base.shape), out=out)

    def contract(self, gradient: Tensor) -> Tensor:
        """Return the coefficients' gradient, (N, K): the tensor's gradient times each task vector, summed by group."""
        gradient_M = gradient.to(self.precision).flatten()
        if self.order_M is not None:
            gradient_M = gradient_M[self.order_M]
        device = self.base.device.type
        without_autocast = torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
        with without_autocast:
            if len(self.chunks) == 1:
                return torch.mv(self.stack_NM.to(self.precision), gradient_M)[:, None]
            products_NK = gradient_M.new_zeros(len(self.stack_NM), self.group_count)
            for group, columns in self.chunks:
                products_NK[:, group] += self.stack_NM[:, columns].to(self.precision) @ gradient_M[columns]
        return products_NK


def _contract(composed: _ComposedTensor, shared: _Shared, position: int, weight: Tensor) -> None:
    """Add one composed weight's contribution to the coefficients' gradient, and free the weight's own gradient."""
    gradient, weight.grad = weight.grad, None
    if gradient is None:  # PyTorch calls the hook even if a ``torch.autograd.Function`` returns no gradient
        return
    shared.changed = True
    coefficients, bounds = shared.coefficients, shared.bounds
    if coefficients.grad is None:
        coefficients.grad = torch.zeros_like(coefficients)
    products_NK = composed.contract(gradient)
    if bounds:
        lambda_NK = coefficients.detach()[:, position]
        products_NK *= (lambda_NK >= bounds[0]) & (lambda_NK <= bounds[1])
    coefficients.grad[:, position] += products_NK


def stack_task_vectors(
    tower: ImageTower, sources: Sources, names: Iterable[str], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Stack all sources' task vectors of the named tensors: name -> (N, M) in ``dtype``, on the tower's device.

    The entries are in the order of the tower's own tensors, where ``proj`` is the transpose of open_clip's. Besides the
    stacks, only one source's task vector is in memory at a time.

    Raises:
        ValueError: if a source's tensor is missing, has another shape, is not finite, or does not fit into ``dtype``.
    """
    own = tower.own_tensors()
    stacks = {
        name: torch.empty(len(sources.names), own[name].numel(), dtype=dtype, device=own[name].device) for name in names
    }
    for row, source in enumerate(sources.names):
        vector = sources.task_vector(source)
        for name, stack_NM in stacks.items():
            stored = own[name].shape[::-1] if name == PROJECTION else own[name].shape
            if name not in vector or vector[name].shape != stored:
                raise ValueError(f"the task vector of {source} has no tensor {name} of the shape {tuple(stored)}")
            value = vector[name].T if name == PROJECTION else vector[name]
            stack_NM[row].copy_(value.reshape(-1))
            if not torch.isfinite(stack_NM[row]).all():
                raise ValueError(
                    f"the task vector of {source} has entries in {name} that are NaN, infinite or too large for {dtype}"
                )
        del vector  # without this, the vector would stay in memory while the next one is read
    return stacks


def trainable_composition(tower: ImageTower, composition: Composition) -> Trainable:
    """Return the tower for training, with the tensors of ``composition`` in place of its own tensors.

    ``composition`` names the tensors as open_clip does.
    """
    return Trainable(
        lambda images_B3SS: tower.embed_with(composition.tensors(), images_B3SS),
        [composition.coefficients],
        current=lambda: tower.replaced(composition.tensors(recompute=True)),
    )
