"""LP++: a linear probe blended with the text head, with step sizes that need no tuning (Huang et al., 2024).

Paper: arXiv:2404.02285. ``logits_c = w_c . f + b_c + alpha_c (t_c . f)`` for a unit feature f and unit text embeddings
t. Full-batch gradient steps in (w, b) and in alpha alternate. At the start w_c is the mean feature of class c and b is
0. Every alpha_c starts at 250 times the mean over the classes of (mean feature . text embedding). This is about 60 for
CLIP, so the text dominates.

Step sizes: the Hessian of the cross-entropy in the logits is at most 1/2 (Boehning, 1992). Let F1 be the features with
a one appended for the bias. The gradient in (w, b) of all classes together is then Lipschitz with the constant
``lambda_max(F1^T F1) / (2 N)``, and the gradient in alpha with ``max_c sum_i (t_c . f_i)^2 / (2 N)``. If the step sizes
are the inverses of these constants, a step without momentum cannot raise the loss.

What differs from the official code:

- The official step size of w, ``4 N / lambda_max(F^T F)``, is derived for each class separately and without the bias.
  It is four to six times the inverse of the constant above. Here the step size is that inverse, with the official
  momentum of 0.9.
- The number of steps is chosen among ``step_counts`` by cross-validation on the support: the number that is most
  accurate on held-out images; ties go to the smallest. The official code keeps the step that is best on labelled
  validation images. No single number fits all datasets. On held-out training images of sixteen datasets of drawn
  pictures, at 4 images a class, 300 steps give 69.1 % and the chosen number gives 70.3 %. At 8 images a class the
  chosen numbers range from 30 to 480. If a class has a single image, this image cannot be left out. Then
  ``one_shot_steps`` are taken: 120 steps gave 66.1 %, 300 steps 64.7 %. ``search: fixed`` takes ``steps``.
- The steps cycle through ``views`` augmented views. The smallest step size of all views is used. With one view, the
  method is the paper's.

``variant: official_code`` repeats the official loop. w starts at the sum of the features, b is random, and the momentum
is 0.9. alpha moves every tenth step, by the sum of all gradients since the start, because the official code never sets
them back to zero. The preset ``official_code`` also uses a single view.

The switch ``lp_plus_plus: as_published`` follows the BOLT authors' code. It takes the official step sizes as learning
rates of AdamW. For (w, b) the step size is at least 4. AdamW moves every number by about its learning rate, so the
start of (w, b) is lost after one step. The authors encode the images again in every epoch; here the epochs cycle
through ``views``. The authors chose the weight decay on the test split; ``candidates`` are the weight decays that they
tried.

Shape legend: N support images, F folds, M images that a fold trains on, B batch, C classes, D joint embedding width,
E = D + 1 with the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Idle, register
from bolt.methods.common.blend import Blend, excess, initial_blend, mean_loss, official_steps, safe_steps
from bolt.methods.common.cross_validation import (
    NO_HOLD_OUT,
    FoldStack,
    compared_with_zero_shot,
    fewest_images,
    fold_stacks,
    summed,
)
from bolt.methods.common.frozen_features import unit_support_features
from bolt.seeds import torch_generator
from bolt.task.classifiers import append_one
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import fit_task
from bolt.training.loop import PlainRecipe, check_finite, cross_entropy
from bolt.util.ranges import NOT_EMPTY, AtLeast1, AtLeast2, Below1, Checked, NotNegative, Positive

_OFFICIAL_MOMENTUM = 0.9
_OFFICIAL_ALPHA_INTERVAL = 10
"""The official code updates alpha in every step whose number is a multiple of this."""
_DECAYS = (0.0, 0.01, 0.1)
"""The weight decays of the BOLT authors' sweep."""


@dataclass(frozen=True)
class LpPlusPlusSettings(Checked):
    """The variant, its steps and their sizes.

    Attributes:
        steps: number of full-batch steps if it is not searched; under ``as_published``, number of epochs.
        search: ``support`` chooses the number of steps among ``step_counts``; ``fixed`` takes ``steps``. The variant
            ``official_code`` and the switch ``as_published`` always take ``steps``.
        step_counts: candidates for the number of steps.
        one_shot_steps: the number of steps if a class has a single image.
        folds: number of folds of the cross-validation; fewer if a class has fewer images.
        views: augmented views that the steps cycle through.
        variant: ``paper`` or ``official_code``, see the module's docstring.
        step: factor on the computed step sizes. The BOLT authors use 0.1 for remote sensing under ``as_published``.
        momentum: momentum of (w, b) in the variant ``paper``.
        weight_decay: weight decay of AdamW under ``as_published``; otherwise unused.
    """

    steps: AtLeast1 = 300
    views: AtLeast1 = 20
    variant: Literal["paper", "official_code"] = "paper"
    step: Positive = 1.0
    momentum: Below1 = 0.9
    weight_decay: NotNegative = 0.0
    search: Literal["support", "fixed"] = "support"
    step_counts: Annotated[tuple[AtLeast1, ...], NOT_EMPTY] = (30, 60, 120, 240, 480)
    one_shot_steps: AtLeast1 = 120
    folds: AtLeast2 = 4


_SEARCHED = ("step_counts", "one_shot_steps", "folds")
"""The settings of the search for the number of steps."""

Step = Callable[[int, Tensor], Tensor]
"""``step(number, unit_ND)`` updates the blend, and returns the loss before the update."""


@register(
    title="LP++",
    palette=5,
    summary="blends a linear probe with the text head",
    paper="https://arxiv.org/abs/2404.02285",
    version=2,
    presets={"official_code": {"variant": "official_code", "views": 1}},
    baseline_crop=True,
    candidates=lambda settings: tuple(replace(settings, weight_decay=decay) for decay in _DECAYS),
    support_feature_views=lambda settings: settings.views,
    idle=(
        Idle(("steps",), {"search": "fixed", "variant": "official_code", "lp_plus_plus": "as_published"}),
        Idle(("weight_decay",), {"lp_plus_plus": "as_published"}),
        Idle(("search", *_SEARCHED, "momentum"), {"variant": "paper"}),
        Idle(_SEARCHED, {"search": "support"}),
        Idle(("weight_decay",), {"config_selection": "fixed"}, noted=True),
        Idle(("search", *_SEARCHED, "momentum", "variant"), {"lp_plus_plus": "sound"}, noted=True),
    ),
)
def adapt(task: Task, settings: LpPlusPlusSettings) -> Adapted:
    """Train a linear probe blended with the text head, in the variant that the settings and the protocol select."""
    if task.protocol.lp_plus_plus == "as_published" or settings.variant == "official_code":
        return _adapt_officially(task, settings)
    if settings.search == "fixed":
        return _adapt(task, settings, {})
    if fewest_images(task.support.labels_N) < 2:
        return _adapt(task, replace(settings, steps=settings.one_shot_steps), {"search": NO_HOLD_OUT})
    counts = sorted(set(settings.step_counts))
    correct = held_out_correct(task, settings, counts)
    steps = counts[correct.index(max(correct))]
    details = {"search": "cross-validation", **compared_with_zero_shot(task, max(correct))}
    return _adapt(task, replace(settings, steps=steps), details)


def held_out_correct(task: Task, settings: LpPlusPlusSettings, counts: Sequence[int]) -> list[int]:
    """Return how many held-out support images are correct after each number of steps in ``counts`` (ascending)."""
    views = _Views(task)
    numbers = len(views.labels_N) * max(views.head_CD.shape[0], views.head_CD.shape[1] + 1)
    return summed(_correct(settings, counts, views, stack) for stack in fold_stacks(task, settings.folds, numbers))


def _correct(settings: LpPlusPlusSettings, counts: Sequence[int], views: _Views, stack: FoldStack) -> Tensor:
    """Return how many held-out images of a stack are correct after each number of steps. All folds train at once."""

    def unit(view: int) -> Tensor:
        return views.unit(view)[stack.kept_FM]

    blend, step, _ = _begin(settings, unit, views.labels_N[stack.kept_FM], views.head_CD)
    losses, correct = [], []
    for number in range(counts[-1]):
        losses.append(step(number, unit(number % settings.views)))
        if number + 1 in counts:
            correct.append(stack.correct(blend.logits(stack.queries_FHD)))
    check_finite(torch.stack(losses), [blend.weight_CE, blend.alpha_C], "step")
    return torch.stack(correct)


def _adapt(task: Task, settings: LpPlusPlusSettings, details: Mapping[str, str]) -> Adapted:
    """Train by gradient steps in (w, b) and in alpha, in turns.

    The step sizes are ``settings.step`` times those of :func:`bolt.methods.common.blend.safe_steps`.
    """
    views = _Views(task)
    blend, step, rate = _begin(settings, views.unit, views.labels_N, views.head_CD)
    _train(task, settings, blend, step, views, float(rate))
    adapted = blend.adapted()
    return replace(adapted, details={**adapted.details, "steps": settings.steps, **details})


def _begin(
    settings: LpPlusPlusSettings, unit: Callable[[int], Tensor], labels_N: Tensor, head_CD: Tensor
) -> tuple[Blend, Step, Tensor]:
    """Return the untrained classifier, its training step, and the step size of (w, b).

    ``unit(view)`` returns the unit features (N, D) of a view or, for a stack of classifiers, (F, N, D).
    """
    blend = initial_blend(unit(0), labels_N, head_CD, "mean")
    sizes = [safe_steps(unit(view), head_CD) for view in range(settings.views)]
    of_w, of_alpha = (settings.step * torch.stack(each).amin(dim=0) for each in zip(*sizes, strict=True))
    return blend, alternating_step(blend, labels_N, (of_w, of_alpha), settings.momentum), of_w


def _adapt_officially(task: Task, settings: LpPlusPlusSettings) -> Adapted:
    """Train by the official loop or, under ``as_published``, by AdamW with the official step sizes as rates."""
    views = _Views(task)
    blend = initial_blend(views.unit(0), views.labels_N, views.head_CD, "sum")
    blend.weight_CE[:, -1] = random_bias(task, views.head_CD.shape[1]).to(task.backbone.device)
    of_w, of_alpha = official_steps(views.unit(0), views.head_CD)
    rates = settings.step * of_w, settings.step * of_alpha
    if task.protocol.lp_plus_plus == "as_published":
        _train_as_published(task, settings, blend, views, rates)
    else:
        _train(task, settings, blend, official_step(blend, views.labels_N, rates), views, rates[0])
    return blend.adapted()


class _Views:
    """The inputs on the device: text head, labels, and ``unit(i)`` -> unit features of view i + 1, which are cached."""

    def __init__(self, task: Task) -> None:
        device = task.backbone.device
        self.head_CD, self.labels_N = task.head_CD.to(device, torch.float32), task.support.labels_N.to(device)
        self.unit = cache(lambda view: unit_support_features(task, view + 1))


def alternating_step(blend: Blend, labels_N: Tensor, rates: tuple[Tensor, Tensor], momentum: float) -> Step:
    """Return a step that moves (w, b) with momentum, and then alpha by its gradient at the new (w, b)."""
    velocity_CE = torch.zeros_like(blend.weight_CE)
    of_w, of_alpha = rates[0].to(velocity_CE)[..., None, None], rates[1].to(velocity_CE)[..., None]
    onehot_NC = F.one_hot(labels_N, len(blend.head_CD))

    def step(number: int, unit_ND: Tensor) -> Tensor:
        ones_NE, text_NC = append_one(unit_ND), unit_ND @ blend.head_CD.T
        logits_NC = blend.logits_of(ones_NE, text_NC)
        by_weight_CE = excess(logits_NC, onehot_NC).mT @ ones_NE
        blend.weight_CE.sub_(of_w * velocity_CE.mul_(momentum).add_(by_weight_CE))
        moved_NC = excess(blend.logits_of(ones_NE, text_NC), onehot_NC)
        blend.alpha_C.sub_(of_alpha * (moved_NC * text_NC).sum(dim=-2))
        return mean_loss(logits_NC, labels_N)

    return step


def official_step(blend: Blend, labels_N: Tensor, rates: tuple[float, float]) -> Step:
    """Return a step that moves (w, b) with momentum.

    Every tenth call also moves alpha, by the sum of alpha's gradients in all calls so far.
    """
    velocity_CE, alpha_sum_C = torch.zeros_like(blend.weight_CE), torch.zeros_like(blend.alpha_C)

    def step(number: int, unit_ND: Tensor) -> Tensor:
        loss, by_weight_CE, by_alpha_C = blend.gradients(unit_ND, labels_N)
        blend.weight_CE.sub_(rates[0] * velocity_CE.mul_(_OFFICIAL_MOMENTUM).add_(by_weight_CE))
        alpha_sum_C.add_(by_alpha_C)
        if (number + 1) % _OFFICIAL_ALPHA_INTERVAL == 0:
            blend.alpha_C.sub_(rates[1] * alpha_sum_C)
        return loss

    return step


def random_bias(task: Task, width: int) -> Tensor:
    """Return the initial bias (C,) of a linear layer with ``width`` inputs: uniform in +-1 / sqrt(width)."""
    generator = torch_generator("lp++ bias", task.dataset, task.seed)
    bound: float = width**-0.5
    return bound * (2 * torch.rand(len(task.head_CD), generator=generator) - 1)


def _train(task: Task, settings: LpPlusPlusSettings, blend: Blend, step: Step, views: _Views, rate: float) -> None:
    """Take all full-batch steps. Raises :class:`bolt.training.loop.Diverged` if a loss is NaN or infinite."""
    losses = []
    for number in range(settings.steps):
        losses.append(step(number, views.unit(number % settings.views)))
        task.after_epoch(number, blend.adapted)
    for number, loss in enumerate(check_finite(torch.stack(losses), [blend.weight_CE, blend.alpha_C], "step")):
        task.report(number, {"train_loss": loss, "learning_rate": rate})


def _train_as_published(
    task: Task, settings: LpPlusPlusSettings, blend: Blend, views: _Views, rates: tuple[float, float]
) -> None:
    """Train with AdamW in batches of 32. ``rates`` are step sizes of gradient descent, taken as learning rates."""
    blend.weight_CE.requires_grad_()
    blend.alpha_C.requires_grad_()
    # The authors' code clips the gradient of (w, b) alone; the training loop would clip it together with alpha's.
    blend.weight_CE.register_hook(lambda gradient: gradient / gradient.norm().clamp_min(1.0))  # type: ignore[no-untyped-call]
    recipe = PlainRecipe(settings.steps, 32, rates[0], settings.weight_decay)

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        rows = rows.to(views.labels_N.device)
        return cross_entropy(blend.logits(views.unit(epoch % settings.views)[rows]), views.labels_N[rows])

    trained, shares = [blend.weight_CE, blend.alpha_C], [1.0, rates[1] / rates[0]]
    fit_task(task, trained, loss_of_rows, task.support.order, recipe, blend.adapted, relative_rates=shares)
