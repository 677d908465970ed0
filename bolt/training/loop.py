"""The training loop that all trained methods share.

By default the loop uses AdamW. The learning rate rises linearly and then follows a cosine to zero, per step. Gradients
are clipped by their global norm. Every epoch visits every row once, the last partial batch included. The loop itself
draws no random numbers. The caller's ``order`` and ``loss_of_rows`` depend on the epoch only, so a resumed training
gives the same bits as an uninterrupted one.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.precision import training_step
from bolt.protocol import STRICT, Precision, Protocol
from bolt.training.optimisers import AdamW
from bolt.util.ranges import AtLeast0, AtLeast1, Checked, Fraction, NotNegative, Positive

MetricsCallback = Callable[[int, Mapping[str, float]], None]
"""``callback(epoch, metrics)``, called after each epoch with the epoch's numbers by name."""
Curve = list[dict[str, float]]
"""One row per epoch: ``train_loss`` and ``learning_rate``."""
Schedule = Callable[[int, int], float]
"""``schedule(step, steps_per_epoch)`` -> the learning rate of a step; steps are counted from 0 over all epochs."""


class Diverged(ArithmeticError):
    """Training diverged: a loss or a parameter is NaN or infinite."""


@dataclass(frozen=True)
class TrainingRecipe(Checked):
    """The hyperparameters of a training.

    Attributes:
        epochs, batch_size, learning_rate, weight_decay: hyperparameters of AdamW; its betas are PyTorch's defaults.
        warmup_fraction: share of all steps over which the learning rate rises linearly.
        warmup_steps: number of warm-up steps; if given, it replaces ``warmup_fraction``.
        clip_norm: largest global norm of the gradient; 0 switches clipping off.
        precision: number format of parameters, gradients and optimiser, always ``float32``. The matrix products of
            a tower have the tower's own number format, see :mod:`bolt.clip.precision`.
        schedule: after the warm-up, a ``cosine`` to zero per step, or a ``constant`` rate. ``halving``: the rate halves
            after every epoch, without a warm-up.
        epsilon: AdamW's epsilon, which is added to the root of the second moment.
        accumulate: how many batches are averaged into one step. The last step of an epoch averages the batches left.
    """

    epochs: AtLeast1 = 20
    batch_size: AtLeast1 = 32
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 0.0
    warmup_fraction: Fraction = 0.1
    clip_norm: NotNegative = 1.0
    warmup_steps: AtLeast0 | None = None
    precision: Literal["float32"] = "float32"
    schedule: Literal["cosine", "constant", "halving"] = "cosine"
    epsilon: Positive = 1e-8
    accumulate: AtLeast1 = 1

    def steps(self, rows: int) -> int:
        """Return the number of optimiser steps of a training on ``rows`` rows."""
        return self.epochs * math.ceil(math.ceil(rows / self.batch_size) / self.accumulate)


@dataclass(frozen=True)
class PlainRecipe(TrainingRecipe):
    """A training recipe without warm-up and gradient clipping."""

    warmup_fraction: float = 0.0
    clip_norm: float = 0.0


@dataclass(frozen=True)
class ReferenceDeviations:
    """Deviations of the BOLT authors' training code from this loop, used under the protocol ``published``.

    Attributes:
        gradient_scale: the factor of the mixed-precision scaler. Their code clips the gradient while it is still
            multiplied by this factor. So the norm after unscaling never exceeds ``clip_norm / gradient_scale`` (their
            aTLAS).
        step_on_full_batches: whether only a full group of ``accumulate`` batches makes a step. Batches that are left
            over at the end of an epoch then make no step; the next step adds their gradient to its own. If a whole
            epoch has fewer than ``accumulate`` batches, no step is ever made (their aTLAS).
        late_schedule: every learning rate takes effect one step late, and the first step has the full rate (their
            BOLT).
        equal_batches: under ``epoch_selection: best_train_loss``, the loss of an epoch is the mean over its batches. A
            partial last batch counts as much as a full one (their BOLT).
    """

    gradient_scale: float = 1.0
    step_on_full_batches: bool = False
    late_schedule: bool = False
    equal_batches: bool = False


NO_DEVIATIONS = ReferenceDeviations()


def learning_rate(base: float, step: int, total: int, warmup_steps: int) -> float:
    """Return the rate of step ``step`` (from 0) of ``total``: it rises linearly to ``base``, then falls by a cosine."""
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (total - warmup_steps)
    return 0.5 * base * (1 + math.cos(math.pi * progress))


def clip_gradient(trained: Sequence[Tensor], norm: float, scale: float = 1.0) -> None:
    """Shrink the gradients in place if their 2-norm, over all tensors together, is larger than ``norm / scale``.

    ``scale``: see :attr:`ReferenceDeviations.gradient_scale`.
    """
    torch.nn.utils.clip_grad_norm_(trained, norm / scale, foreach=True)


def adamw(groups: list[dict[str, Any]], recipe: TrainingRecipe) -> torch.optim.Optimizer:
    """Return AdamW with PyTorch's default betas, and the recipe's epsilon and weight decay."""
    fused = groups[0]["params"][0].device.type in ("cpu", "cuda")
    rate, decay = recipe.learning_rate, recipe.weight_decay
    return AdamW(groups, lr=rate, eps=recipe.epsilon, weight_decay=decay, fused=fused)


def fused_on_gpu(device: torch.device) -> bool | None:
    """Return the argument ``fused`` of an optimiser: ``True`` on a GPU, and ``None`` (PyTorch's default) elsewhere.

    A fused optimiser rounds differently, so the choice decides the last bits of a result.
    """
    return True if device.type == "cuda" else None


def fit(
    parameters: Iterable[Tensor],
    loss_of_rows: Callable[[int, Tensor], Tensor],
    order: Callable[[int], Tensor],
    recipe: TrainingRecipe,
    protocol: Protocol = STRICT,
    report: MetricsCallback = lambda epoch, metrics: None,
    *,
    on_epoch_end: Callable[[int, Callable[[], dict[str, Any]]], None] = lambda epoch, state: None,
    resume: Mapping[str, Any] | None = None,
    relative_rates: Sequence[float] | None = None,
    deviations: ReferenceDeviations = NO_DEVIATIONS,
    make_optimiser: Callable[[list[dict[str, Any]], TrainingRecipe], torch.optim.Optimizer] = adamw,
    schedule: Schedule | None = None,
    precision: Precision | None = "float32",
) -> Curve:
    """Train ``parameters`` in place; returns one row of ``train_loss`` and ``learning_rate`` per epoch.

    Args:
        parameters: leaf tensors that require a gradient.
        loss_of_rows: ``loss_of_rows(epoch, rows)`` -> the mean loss of these rows; epochs count from 0.
        order: ``order(epoch)`` -> the rows of an epoch, (N,), with the same N in every epoch. A row is a number whose
            meaning only ``loss_of_rows`` knows.
        recipe: the hyperparameters.
        protocol: only its ``epoch_selection`` is read. ``best_train_loss`` restores the parameters of the first epoch
            with the lowest loss.
        report: called after each epoch with the epoch's number and its row of the curve.
        on_epoch_end: called after each epoch with its number and a function that makes a snapshot of the training.
            A snapshot holds tensors, numbers, lists and dictionaries only, so ``torch.load`` with ``weights_only``
            reads it.
        resume: a snapshot; training continues with the epoch after the snapshot.
        relative_rates: a factor on the learning rate for each parameter; 1 by default.
        deviations: see :class:`ReferenceDeviations`.
        make_optimiser: ``make_optimiser(groups, recipe)`` -> the optimiser of these groups of parameters.
        schedule: the learning rate of every step; by default the recipe's warm-up and schedule.
        precision: number format in which a GPU multiplies float32 matrices during a step. If a tower is trained, pass
            the tower's format.

    Raises:
        Diverged: if a loss, or a parameter at the end of an epoch, is NaN or infinite. The message names epoch and
            step.
    """
    trained = list(parameters)
    shares = [1.0] * len(trained) if relative_rates is None else list(relative_rates)
    device = trained[0].device
    groups: list[dict[str, Any]] = [
        {"params": [tensor for tensor, s in zip(trained, shares, strict=True) if s == share], "share": share}
        for share in dict.fromkeys(shares)
    ]
    optimiser = make_optimiser(groups, recipe)
    curve: Curve = []
    best: list[Tensor] = []
    lowest_loss = math.inf
    first = 0
    if resume is not None:
        first = int(resume["epoch"]) + 1
        curve, best = list(resume["curve"]), list(resume["best"])
        lowest_loss = float(resume.get("lowest_loss", math.inf))  # snapshots of earlier versions lack the lowest loss
        optimiser.load_state_dict(resume["optimiser"])
        restore(trained, resume["parameters"])
    rate_of = schedule or partial(_rate, recipe, deviations.late_schedule)
    carry_gradient = False
    for epoch in range(first, recipe.epochs):
        rows = order(epoch)
        batches = torch.split(rows, recipe.batch_size)
        steps = [batches[at : at + recipe.accumulate] for at in range(0, len(batches), recipe.accumulate)]
        losses = []
        for position, step_batches in enumerate(steps):
            number = epoch * len(steps) + position
            rate = rate_of(number, len(steps))
            for group in optimiser.param_groups:
                group["lr"] = rate * group["share"]
            if not carry_gradient:
                optimiser.zero_grad(set_to_none=True)
            for batch in step_batches:
                share = 1 / (recipe.accumulate if deviations.step_on_full_batches else len(step_batches))
                with training_step(precision, device):
                    loss = loss_of_rows(epoch, batch)
                    (share * loss).backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
            carry_gradient = deviations.step_on_full_batches and len(step_batches) < recipe.accumulate
            if carry_gradient:
                continue
            if recipe.clip_norm:
                clip_gradient(trained, recipe.clip_norm, deviations.gradient_scale)
            optimiser.step()
        # The losses are read once per epoch, because a read at every step would make the GPU wait.
        batch_losses = torch.stack(losses).float()
        check_finite(batch_losses, trained, f"epoch {epoch}, step")
        weights = torch.tensor([len(batch) / len(rows) for batch in batches], device=device)
        row = {"train_loss": float(batch_losses @ weights), "learning_rate": rate}
        epoch_loss = float(batch_losses.mean()) if deviations.equal_batches else row["train_loss"]
        if protocol.epoch_selection == "best_train_loss" and epoch_loss < lowest_loss:
            best, lowest_loss = _copies(trained), epoch_loss
        curve.append(row)
        report(epoch, row)
        state = {"epoch": epoch, "curve": list(curve), "best": list(best), "lowest_loss": lowest_loss}
        on_epoch_end(epoch, partial(_snapshot, state, trained, optimiser))
    if best:
        restore(trained, best)
    return curve


def _rate(recipe: TrainingRecipe, late: bool, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of step ``step``, counted from 0 over all epochs.

    ``late``: see ``late_schedule`` of :class:`ReferenceDeviations`.
    """
    if recipe.schedule == "halving":
        return recipe.learning_rate * 0.5 ** (step // steps_per_epoch)
    total = recipe.epochs * steps_per_epoch
    warmup = int(recipe.warmup_fraction * total) if recipe.warmup_steps is None else recipe.warmup_steps
    if recipe.schedule == "constant":
        return recipe.learning_rate * min(1.0, (step + 1) / max(1, warmup))
    if late:
        return learning_rate(recipe.learning_rate, step - 1, total, warmup) if step else recipe.learning_rate
    return learning_rate(recipe.learning_rate, step, total, warmup)


def _snapshot(state: dict[str, Any], trained: Sequence[Tensor], optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    return {**state, "parameters": _copies(trained), "optimiser": optimiser.state_dict()}


def cross_entropy(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean cross-entropy, computed in float32 for logits of any precision."""
    return F.cross_entropy(logits_BC.float(), labels_B)


def check_finite(losses: Tensor, trained: Iterable[Tensor], step: str, first: int = 0) -> list[float]:
    """Check that the losses and the trained parameters are finite, and return the losses as numbers.

    Raises ``Diverged`` if the loss of a step, or a parameter after the last step, is NaN or infinite.

    Args:
        losses: the loss of each step.
        step: the name of a step in the message, such as ``outer update``.
        first: the number of the first step.
    """
    values: list[float] = losses.tolist()
    bad = next((index for index, value in enumerate(values) if not math.isfinite(value)), None)
    if bad is not None:
        raise Diverged(f"the loss of {step} {first + bad} is {values[bad]}")
    if not torch.stack([torch.isfinite(tensor).all() for tensor in trained]).all():
        raise Diverged(f"a parameter is NaN or infinite after {step} {first + len(values) - 1}")
    return values


def _copies(trained: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in trained]


def restore(trained: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copy the values into the trained tensors."""
    with torch.no_grad():
        for tensor, value in zip(trained, values, strict=True):
            tensor.copy_(value)
