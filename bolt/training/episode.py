"""One episode of meta-learning: inner steps on a few images of a dataset, and the resulting outer gradient.

Shape legend: B images of an episode, C classes, D joint embedding width, S image side.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bolt.clip.recomputation import QuickGELU
from bolt.clip.tower import ImageTower
from bolt.training.loop import cross_entropy
from bolt.util.ranges import AtLeast1, Checked, NotNegative, Positive

Parameters = Mapping[str, Tensor]
Loss = Callable[[Parameters], Tensor]

HEAD = "head"
"""Name of the head among an episode's parameters; all other names are the tower's."""


Variant = Literal["maml", "first_order", "reptile"]


@dataclass(frozen=True)
class MetaRecipe(Checked):
    """The hyperparameters of a meta-learned start; the defaults are the BOLT authors' for MAML.

    Attributes:
        variant: ``maml`` differentiates through the inner steps; ``first_order`` takes the gradient after the inner
            steps; ``reptile`` moves towards the parameters after the inner steps.
        steps: the number of outer updates.
        tasks_per_step: number of datasets per outer update; all datasets if there are fewer.
        support, query: number of training images of a dataset that the inner steps use (``support``), and that the
            outer loss uses (``query``).
        inner_steps, inner_rate: number and learning rate of the plain gradient steps on the support. These steps train
            the head too.
        outer_rate: learning rate of AdamW without weight decay; for ``reptile``, the fraction of the way to the
            parameters after the inner steps.
        clip_norm: largest global norm of the outer gradient; 0 switches clipping off. ``reptile`` never clips.
    """

    variant: Variant = "maml"
    steps: AtLeast1 = 2000
    tasks_per_step: AtLeast1 = 4
    support: AtLeast1 = 32
    query: AtLeast1 = 32
    inner_steps: AtLeast1 = 1
    inner_rate: Positive = 1e-4
    outer_rate: Positive = 5e-5
    clip_norm: NotNegative = 1.0


def episode_loss(tower: ImageTower, images_B3SS: Tensor, labels_B: Tensor) -> Loss:
    """Return the cross-entropy of normalised images as a function of the tower's parameters and of a head (C, D).

    The head is applied to unit features. Its rows must already contain the logit scale as a factor.
    """

    def loss(parameters: Parameters) -> Tensor:
        own = {name: tensor for name, tensor in parameters.items() if name != HEAD}
        features_BD = functional_call(tower, own, (images_B3SS,))
        return cross_entropy(F.linear(F.normalize(features_BD, dim=-1), parameters[HEAD]), labels_B)

    return loss


def outer_gradient(
    start: Parameters, support_loss: Loss, query_loss: Loss, recipe: MetaRecipe
) -> tuple[dict[str, Tensor], Tensor]:
    """Return an episode's outer gradient and loss. The gradient has a tensor for every parameter but the head.

    Let theta be the start, F(theta) the parameters after the inner steps and L the loss of the query images. The outer
    gradient is the gradient of L(F(theta)) in theta for ``maml``, the gradient of L at F(theta) for ``first_order``,
    and theta - F(theta) for ``reptile``. The episode's loss is L(F(theta)) or, for ``reptile``, which does not use the
    query images, the loss of the support images at theta.
    """
    second_order = recipe.variant == "maml"
    point = {name: tensor.detach().requires_grad_() for name, tensor in start.items()}
    origin = point
    losses = []
    for _ in range(recipe.inner_steps):
        loss = support_loss(point)
        losses.append(loss.detach())
        gradients = torch.autograd.grad(loss, list(point.values()), create_graph=second_order)
        updated = {
            name: tensor - recipe.inner_rate * gradient
            for (name, tensor), gradient in zip(point.items(), gradients, strict=True)
        }
        if not second_order:
            updated = {name: tensor.detach().requires_grad_() for name, tensor in updated.items()}
        point = updated
    names = [name for name in start if name != HEAD]
    if recipe.variant == "reptile":
        return {name: (origin[name] - point[name]).detach() for name in names}, losses[0]
    loss = query_loss(point)
    at = origin if second_order else point
    gradients = torch.autograd.grad(loss, [at[name] for name in names])
    return dict(zip(names, gradients, strict=True)), loss.detach()


class _PlainQuickGELU(nn.Module):
    """x * sigmoid(1.702 x), written with operations that can be differentiated twice."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def twice_differentiable(tower: ImageTower) -> ImageTower:
    """Return a copy of the tower that shares all tensors, and whose gradient can be differentiated again.

    The tower's QuickGELU has a first derivative only, so the copy has a QuickGELU of plain operations. Fused attention
    has a first derivative only too. So the caller must select the ``MATH`` kernel with
    ``torch.nn.attention.sdpa_kernel``.
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in tower.parameters()}
    shared_tower = copy.deepcopy(tower, memo=shared)  # deepcopy does not copy what its memo holds
    for module in shared_tower.modules():
        if isinstance(getattr(module, "activation", None), QuickGELU):
            module.activation = _PlainQuickGELU()
    return shared_tower
