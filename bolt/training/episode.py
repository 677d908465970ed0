"""One episode of meta-learning: inner steps on a few images of a dataset, and what the start learns from them.

Shape legend: B images of an episode, C classes, D joint embedding width, S image side.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bolt.clip.tower import ImageTower, QuickGELU
from bolt.training.meta_recipe import MetaRecipe
from bolt.training.objectives import cross_entropy

Parameters = Mapping[str, Tensor]
Loss = Callable[[Parameters], Tensor]

HEAD = "head"
"""The name of the head among an episode's parameters; all others are the tower's."""


def episode_loss(tower: ImageTower, images_B3SS: Tensor, labels_B: Tensor) -> Loss:
    """Cross-entropy of normalised images as a function of the tower's parameters and of a head (C, D).

    The head takes unit features and holds the logit scale.
    """

    def loss(parameters: Parameters) -> Tensor:
        own = {name: tensor for name, tensor in parameters.items() if name != HEAD}
        features_BD = functional_call(tower, own, (images_B3SS,))
        return cross_entropy(F.linear(F.normalize(features_BD, dim=-1), parameters[HEAD]), labels_B)

    return loss


def outer_gradient(
    start: Parameters, support_loss: Loss, query_loss: Loss, recipe: MetaRecipe
) -> tuple[dict[str, Tensor], Tensor]:
    """What an outer update descends along for one episode: per parameter of ``start`` but the head, and a loss.

    With theta the start, F(theta) the end of the inner steps and L the query's loss, it is for ``maml`` the gradient of
    L(F(theta)) by theta, for ``first_order`` that of L at F(theta), for ``reptile`` theta - F(theta). The loss is
    L(F(theta)); ``reptile`` looks at no query, its loss is the support's at theta.
    """
    second_order = recipe.variant == "maml"
    point = {name: tensor.detach().requires_grad_() for name, tensor in start.items()}
    origin = point
    losses = []
    for _ in range(recipe.inner_steps):
        loss = support_loss(point)
        losses.append(loss.detach())
        gradients = torch.autograd.grad(loss, list(point.values()), create_graph=second_order)
        moved = {
            name: tensor - recipe.inner_rate * gradient
            for (name, tensor), gradient in zip(point.items(), gradients, strict=True)
        }
        point = moved if second_order else {name: tensor.detach().requires_grad_() for name, tensor in moved.items()}
    names = [name for name in start if name != HEAD]
    if recipe.variant == "reptile":
        return {name: (origin[name] - point[name]).detach() for name in names}, losses[0]
    loss = query_loss(point)
    at = origin if second_order else point
    gradients = torch.autograd.grad(loss, [at[name] for name in names])
    return dict(zip(names, gradients, strict=True)), loss.detach()


class _PlainQuickGELU(nn.Module):
    """x * sigmoid(1.702 x), spelled out."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def twice_differentiable(tower: ImageTower) -> ImageTower:
    """A tower that shares all tensors and computes the same, but whose gradient can be differentiated.

    The tower's own QuickGELU cannot. Neither can fused attention: the caller has to choose the ``MATH`` kernel of
    ``torch.nn.attention.sdpa_kernel``.
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in tower.parameters()}
    twin = copy.deepcopy(tower, memo=shared)  # deepcopy returns what its memo holds instead of copying it
    for block in twin.blocks:
        if isinstance(block.activation, QuickGELU):
            block.activation = _PlainQuickGELU()
    return twin
