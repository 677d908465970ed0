"""Meta-learns an initialisation of the image tower on other datasets, with MAML or Reptile.

An *episode* is a few labelled images of one dataset: support images and query images. The inner loop takes plain
gradient steps on the support images. These steps change the tower and a copy of the dataset's zero-shot head. The outer
update changes the tower only. MAML (Finn et al., 2017) lowers the loss of the query images after the inner loop. It
differentiates through the inner steps; its first-order form does not. Reptile (Nichol et al., 2018) moves the tower
towards the parameters at the end of the inner loop.

The head is multiplied by the logit scale, ``scale * head_CD``, as in the BOLT authors' code. The default learning rates
are theirs, and fit a head of that scale.

Shape legend: N training images, B images of an episode, C classes, D joint embedding width, S image side.
"""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bolt.clip.backbone import Backbone
from bolt.clip.precision import training_step
from bolt.clip.recomputation import QuickGELU
from bolt.clip.tower import ImageTower, Tower
from bolt.clip.transfer import to_device
from bolt.seeds import torch_generator
from bolt.training.loop import MetricsCallback, check_finite, clip_gradient, cross_entropy, fused_on_gpu, restore
from bolt.training.optimisers import SGD, AdamW
from bolt.util.ranges import AtLeast1, Checked, NotNegative, Positive

REPORT_INTERVAL = 50
"""Outer updates between two reports. A training can be resumed at a report."""

Parameters = Mapping[str, Tensor]
Loss = Callable[[Parameters], Tensor]

HEAD = "head"
"""Name of the head among an episode's parameters; all other names are the tower's."""


Variant = Literal["maml", "first_order", "reptile"]


@dataclass(frozen=True)
class MetaRecipe(Checked):
    """The hyperparameters of meta-learning; the defaults are the BOLT authors' for MAML.

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


@dataclass(frozen=True)
class MetaTask:
    """One dataset to meta-learn on.

    Attributes:
        name: the dataset's name; the draws of images depend on it.
        head_CD: the dataset's zero-shot head, unit rows.
        labels_N: class of each training image.
        pixels: ``pixels(view, rows)`` -> uint8 (len(rows), 3, S, S): random crops of training images, drawn from
            ``bolt.clip.augment.SOURCE_CROP``. Every ``view`` has other crops. Outer update t (from 0) reads view t + 1.
    """

    name: str
    head_CD: Tensor
    labels_N: Tensor
    pixels: Callable[[int, Tensor], Tensor]


def meta_learn(
    backbone: Backbone,
    tasks: Sequence[MetaTask],
    recipe: MetaRecipe,
    *,
    seed: int,
    report: MetricsCallback = lambda interval, metrics: None,
    on_interval_end: Callable[[int, Callable[[], dict[str, Any]]], None] = lambda interval, state: None,
    resume: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Meta-learn the image tower; returns every tensor of the result by open_clip name.

    The draw of an update's datasets depends on (seed, step) only, the draw of an episode's images on (seed, step,
    dataset). So neither the order of ``tasks`` nor an interruption changes the result.

    Args:
        backbone: the pre-trained model to start from; it is not changed.
        tasks: the datasets to learn on. The caller leaves the target out.
        recipe: the hyperparameters.
        seed: seed of all draws.
        report: called after every ``REPORT_INTERVAL`` updates, and after the last update. These updates are an
            interval; ``report`` gets the interval's number, from 0, and its mean ``meta_loss``: the loss of the query
            images after the inner steps or, for ``reptile``, of the support images before the inner steps.
        on_interval_end: called after ``report`` with the number of the interval and a function that makes a snapshot of
            the training. A snapshot holds tensors, numbers, lists and dictionaries only, so ``torch.load`` with
            ``weights_only`` reads it.
        resume: a snapshot; training continues with the update after the snapshot.

    Raises:
        ValueError: if there are no tasks, if two tasks have the same name, or if a dataset has fewer images than an
            episode.
        bolt.training.loop.Diverged: if a loss, or a parameter at the end of an interval, is NaN or infinite. The
            message names the update.
    """
    pool = _checked(tasks, recipe)
    tower = backbone.tower.copy(trainable=backbone.tower.state_dict_open_clip())
    trained = dict(tower.named_parameters())
    fused = fused_on_gpu(backbone.device)
    optimiser: torch.optim.Optimizer
    if recipe.variant == "reptile":
        # The gradient is theta - F(theta), where F(theta) are the parameters after the inner steps. So a plain step
        # moves towards F(theta).
        optimiser = SGD(trained.values(), lr=recipe.outer_rate, fused=fused)
    else:
        optimiser = AdamW(trained.values(), lr=recipe.outer_rate, weight_decay=0.0, fused=fused)
    first = 0
    if resume is not None:
        first = int(resume["step"]) + 1
        optimiser.load_state_dict(resume["optimiser"])
        restore(trained.values(), (resume["parameters"][name] for name in trained))
    encoder = twice_differentiable(tower) if recipe.variant == "maml" else tower
    losses: list[Tensor] = []
    for step in range(first, recipe.steps):
        drawn = torch.randperm(len(pool), generator=torch_generator("meta tasks", seed, step))[: recipe.tasks_per_step]
        optimiser.zero_grad(set_to_none=True)
        losses.append(torch.zeros((), device=backbone.device))
        for task in (pool[index] for index in drawn.tolist()):
            gradients, loss = _episode(backbone, encoder, task, recipe, seed, step)
            losses[-1] += loss / len(drawn)
            for name, tensor in trained.items():
                share = gradients.pop(name) / len(drawn)
                tensor.grad = share if tensor.grad is None else tensor.grad.add_(share)
        if recipe.clip_norm and recipe.variant != "reptile":
            clip_gradient(list(trained.values()), recipe.clip_norm)
        optimiser.step()
        if (step + 1) % REPORT_INTERVAL == 0 or step + 1 == recipe.steps:
            stacked = torch.stack(losses)
            check_finite(stacked, trained.values(), "outer update", step + 1 - len(losses))
            report(step // REPORT_INTERVAL, {"meta_loss": float(stacked.mean())})
            losses.clear()

            def state(step: int = step) -> dict[str, Any]:
                parameters = {name: tensor.detach().clone() for name, tensor in trained.items()}
                return {"step": step, "parameters": parameters, "optimiser": copy.deepcopy(optimiser.state_dict())}

            on_interval_end(step // REPORT_INTERVAL, state)
    return tower.state_dict_open_clip()


def _episode(
    backbone: Backbone, encoder: ImageTower, task: MetaTask, recipe: MetaRecipe, seed: int, step: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return an episode's outer gradient and its loss. The images are drawn regardless of their classes."""
    generator = torch_generator("episode", seed, step, task.name)
    rows = torch.randperm(len(task.labels_N), generator=generator)[: recipe.support + recipe.query]
    images_B3SS = backbone.normalise(task.pixels(step + 1, rows))
    labels_B = to_device(task.labels_N[rows], backbone.device)
    parts = slice(recipe.support), slice(recipe.support, None)
    support_loss, query_loss = (episode_loss(encoder, images_B3SS[part], labels_B[part]) for part in parts)
    start = dict(encoder.named_parameters()) | {HEAD: backbone.logit_scale * task.head_CD.to(backbone.device)}
    # Fused attention has no second derivative.
    attention = sdpa_kernel(SDPBackend.MATH) if recipe.variant == "maml" else nullcontext()
    with attention, training_step(backbone.precision, backbone.device):
        return outer_gradient(start, support_loss, query_loss, recipe)


def _checked(tasks: Sequence[MetaTask], recipe: MetaRecipe) -> list[MetaTask]:
    """Return the tasks sorted by name. Raises ``ValueError`` where :func:`meta_learn` does."""
    if not tasks:
        raise ValueError("there is no dataset to meta-learn on")
    pool = sorted(tasks, key=lambda task: task.name)
    for task, following in itertools.pairwise(pool):
        if task.name == following.name:
            raise ValueError(f"two datasets to meta-learn on are called {task.name!r}")
    wanted = recipe.support + recipe.query
    for task in pool:
        if len(task.labels_N) < wanted:
            raise ValueError(
                f"an episode has {wanted} images, but {task.name} has {len(task.labels_N)}; lower support or query"
            )
    return pool


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
    clone = Tower.copy(tower)  # unlike the copy of an image tower, it freezes no tensor
    for module in clone.modules():
        if isinstance(getattr(module, "activation", None), QuickGELU):
            module.activation = _PlainQuickGELU()
    return clone
