"""The one training loop that every trained method goes through.

AdamW; linear warm-up, then cosine to zero, per step; gradients clipped by their global norm; every row visited once
an epoch, the last partial batch included. No random generator is drawn from: the caller's ``order`` and
``loss_of_rows`` are keyed by the epoch, so a run that is resumed is the run that was not interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from bolt.protocol import STRICT, Protocol

MetricsCallback = Callable[[int, Mapping[str, float]], None]
Curve = list[dict[str, float]]


class Diverged(ArithmeticError):
    """A loss or a parameter that is NaN or infinite."""


@dataclass(frozen=True)
class TrainingRecipe:
    """How long and how hard to train.

    Attributes:
        epochs, batch_size, learning_rate, weight_decay: of AdamW with its usual betas.
        warmup_fraction: share of all steps over which the rate rises linearly.
        warmup_steps: that many steps instead, however few there are in total.
        clip_norm: largest global norm of the gradient; 0 switches clipping off.
        precision: ``bfloat16`` runs the loss under autocast where the parameters are on a GPU; parameters,
            gradients and optimiser stay float32.
        schedule: after the warm-up a ``cosine`` to zero per step, or the rate ``halving`` after every epoch.
        epsilon: AdamW's, added to the root of the second moment.
        accumulate: batches whose gradients are averaged into one step; the last step of an epoch takes what is left.
    """

    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_fraction: float = 0.1
    clip_norm: float = 1.0
    warmup_steps: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    schedule: Literal["cosine", "halving"] = "cosine"
    epsilon: float = 1e-8
    accumulate: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is positive, not {getattr(self, name)}")
        for name in ("weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is not negative, unlike {getattr(self, name)}")
        for name, choices in (("precision", ("float32", "bfloat16")), ("schedule", ("cosine", "halving"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {' or '.join(choices)}, not {getattr(self, name)!r}")
        if not 0 <= self.warmup_fraction <= 1 or (self.warmup_steps or 0) < 0:
            raise ValueError("warmup_fraction lies in [0, 1] and warmup_steps is not negative")

    def steps(self, rows: int) -> int:
        """Optimiser steps of the whole training on so many rows."""
        return self.epochs * math.ceil(math.ceil(rows / self.batch_size) / self.accumulate)


@dataclass(frozen=True)
class ReferenceQuirks:
    """What the authors' training loops do wrong, each for the methods they do it to.

    Attributes:
        gradient_scale: the gradient is clipped after it was multiplied by the scale of a mixed-precision scaler, and
            divided by it only then, so that its norm never exceeds ``clip_norm / gradient_scale``.
        step_on_full_batches: with ``accumulate`` = 2, only every second batch of an epoch makes a step. An odd last
            batch makes none; its gradient leaks into the next epoch. One batch an epoch never makes any.
        late_schedule: every rate takes effect one step late, and the first step has the full rate (their BOLT).
    """

    gradient_scale: float = 1.0
    step_on_full_batches: bool = False
    late_schedule: bool = False


NO_QUIRKS = ReferenceQuirks()


def learning_rate(base: float, step: int, total: int, warmup_steps: int) -> float:
    """The rate of update ``step`` (from 0) of ``total``: linear to ``base`` at step warmup_steps - 1, then a cosine."""
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (total - warmup_steps)
    return 0.5 * base * (1 + math.cos(math.pi * progress))


def clip_gradient(trained: Sequence[Tensor], norm: float, scale: float = 1.0) -> None:
    """Shorten the gradient to ``norm``, 2-norm over all tensors together; ``scale`` as in :class:`ReferenceQuirks`."""
    torch.nn.utils.clip_grad_norm_(trained, norm / scale, foreach=True)


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
    quirks: ReferenceQuirks = NO_QUIRKS,
) -> Curve:
    """Train ``parameters`` in place; returns one row of ``train_loss`` and ``learning_rate`` per epoch.

    Args:
        parameters: leaf tensors that require a gradient.
        loss_of_rows: mean loss of the given rows in the given epoch (from 0).
        order: the rows of an epoch, (N,), the same number in every epoch. What a row stands for is the caller's.
        recipe: see :class:`TrainingRecipe`.
        protocol: its ``epoch_selection`` is obeyed.
        report: called after each epoch with its row.
        on_epoch_end: called after each epoch with it and a function that snapshots the training (tensors, numbers,
            lists and dictionaries only, so that ``torch.save`` and a ``weights_only`` load will do).
        resume: such a snapshot, from which training goes on with the epoch after it.
        relative_rates: per parameter, its share of the recipe's rate; all 1 by default.
        quirks: see :class:`ReferenceQuirks`.

    Raises:
        Diverged: naming epoch and step, when a loss or (after an epoch) a parameter is NaN or infinite.
    """
    trained = list(parameters)
    shares = [1.0] * len(trained) if relative_rates is None else list(relative_rates)
    device = trained[0].device
    optimiser = torch.optim.AdamW(
        [{"params": [tensor for tensor, s in zip(trained, shares, strict=True) if s == share], "share": share}
         for share in dict.fromkeys(shares)],
        lr=recipe.learning_rate, eps=recipe.epsilon, weight_decay=recipe.weight_decay, fused=_fusible(trained),
    )  # fmt: skip
    curve: Curve = []
    best: list[Tensor] = []
    first = 0
    if resume is not None:
        first = int(resume["epoch"]) + 1
        curve, best = list(resume["curve"]), list(resume["best"])
        optimiser.load_state_dict(resume["optimiser"])
        _restore(trained, resume["parameters"])
    autocast = torch.autocast(
        device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16" and device.type == "cuda"
    )
    leaking = False
    for epoch in range(first, recipe.epochs):
        rows = order(epoch)
        batches = torch.split(rows, recipe.batch_size)
        steps = [batches[at : at + recipe.accumulate] for at in range(0, len(batches), recipe.accumulate)]
        losses = []
        for position, step_batches in enumerate(steps):
            rate = _rate(recipe, quirks.late_schedule, epoch * len(steps) + position, len(steps))
            for group in optimiser.param_groups:
                group["lr"] = rate * group["share"]
            if not leaking:
                optimiser.zero_grad(set_to_none=True)
            for batch in step_batches:
                with autocast:
                    loss = loss_of_rows(epoch, batch)
                share = 1 / (recipe.accumulate if quirks.step_on_full_batches else len(step_batches))
                (share * loss).backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
            leaking = quirks.step_on_full_batches and len(step_batches) < recipe.accumulate
            if leaking:
                continue
            if recipe.clip_norm:
                clip_gradient(trained, recipe.clip_norm, quirks.gradient_scale)
            optimiser.step()
        # Checked once an epoch, for a look at every loss would make a GPU wait at every step.
        _refuse_divergence(epoch, torch.stack(losses), trained)
        weights = torch.tensor([len(batch) / len(rows) for batch in batches], device=device)
        row = {"train_loss": float(torch.stack(losses).float() @ weights), "learning_rate": rate}
        if protocol.epoch_selection == "best_train_loss" and row["train_loss"] < min(
            (earlier["train_loss"] for earlier in curve), default=math.inf
        ):
            best = _snapshot(trained)
        curve.append(row)
        report(epoch, row)
        on_epoch_end(epoch, partial(_state, epoch, trained, optimiser, curve, best))
    if best:
        _restore(trained, best)
    return curve


def _rate(recipe: TrainingRecipe, late: bool, step: int, steps_per_epoch: int) -> float:
    """The rate of update ``step``, counted from 0 over all epochs."""
    if recipe.schedule == "halving":
        return recipe.learning_rate * 0.5 ** (step // steps_per_epoch)
    total = recipe.epochs * steps_per_epoch
    warmup = int(recipe.warmup_fraction * total) if recipe.warmup_steps is None else recipe.warmup_steps
    if late:
        return learning_rate(recipe.learning_rate, step - 1, total, warmup) if step else recipe.learning_rate
    return learning_rate(recipe.learning_rate, step, total, warmup)


def _fusible(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.is_floating_point() and tensor.device.type in ("cpu", "cuda") for tensor in tensors)


def _state(
    epoch: int, trained: Sequence[Tensor], optimiser: torch.optim.Optimizer, curve: Curve, best: Sequence[Tensor]
) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "parameters": _snapshot(trained),
        "optimiser": optimiser.state_dict(),
        "curve": list(curve),
        "best": list(best),
    }


def _refuse_divergence(epoch: int, losses: Tensor, trained: Sequence[Tensor]) -> None:
    bad = torch.nonzero(~torch.isfinite(losses)).flatten().tolist()
    if bad:
        raise Diverged(f"the loss of epoch {epoch}, step {bad[0]} is {float(losses[bad[0]])}")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in trained):
        raise Diverged(f"a parameter is NaN or infinite after epoch {epoch}, step {len(losses) - 1}")


def _snapshot(trained: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in trained]


def _restore(trained: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(trained, values, strict=True):
            tensor.copy_(value)
