"""Run a method on a task of :mod:`tests.helpers.towers`, and record what it reads, reports and returns."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from bolt.methods import METHODS
from bolt.protocol import PUBLISHED, STRICT, Protocol
from bolt.task.task import Adapted, Task
from tests.helpers.quick_settings import quick_settings

Kind = TypeVar("Kind")
Value = TypeVar("Value")
SWITCHED = frozenset({
    "atlas", "auto", "bolt", "bolt_pooled", "consensus", "dora", "iso_c", "knots", "linear_probe", "lines", "lora",
    "lp_plus_plus", "task_arithmetic", "ties", "tip_adapter", "tsv_merge",
})  # fmt: skip
"""The methods that compute something else under ``PUBLISHED``: they read a switch in which it differs."""


def protocols_of(name: str) -> tuple[Protocol, ...]:
    """Return the protocols under which a method computes different things."""
    return (STRICT, PUBLISHED) if name in SWITCHED else (STRICT,)


def id_of(value: str | Protocol) -> str:
    """Return a parameter's part of the name of a test."""
    return value if isinstance(value, str) else value.name


def track_of(task: Task) -> str:
    return "fewshot" if task.unlabelled is None else "tta"


def adapt(name: str, task: Task, **settings: Any) -> Adapted:
    """Adapt with these settings; the others have their defaults on the task's track."""
    return METHODS[name].adapt(task, METHODS[name].configure(settings, track_of(task)))


def run(name: str, task: Task, **changes: Any) -> tuple[Adapted, Tensor]:
    """Adapt with the method's settings for tests and these changes; return the result and its logits."""
    adapted = adapt(name, task, **{**quick_settings(name), **changes})
    return adapted, logits_of(task, adapted)


def logits_of(task: Task, adapted: Adapted) -> Tensor:
    """Return the logits of the images that the task adapts to."""
    seen = task.unlabelled or task.support
    features = task.backbone.encode_images(seen.pixels(0, torch.arange(len(seen))), adapted.tower)
    return adapted.classify(features).detach()


def classifier(adapted: Adapted, kind: type[Kind]) -> Kind:
    """Return the classifier, which must be of this kind."""
    assert isinstance(adapted.classify, kind)
    return adapted.classify


def with_curve(task: Task, number: str = "train_loss") -> tuple[Task, list[float]]:
    """Return the task, and a list of a number that the method reports after each epoch."""
    curve: list[float] = []
    return replace(task, report=lambda epoch, row: curve.append(row[number])), curve


def with_epochs(task: Task, look: Callable[[Adapted], Value]) -> tuple[Task, list[Value]]:
    """Return the task, and a list of ``look(adapted)`` after each epoch."""
    seen: list[Value] = []
    return replace(task, after_epoch=lambda epoch, make: seen.append(look(make()))), seen


def with_looks(task: Task) -> tuple[Task, list[tuple[int, list[int]]]]:
    """Return the task, and a list of the view and the rows of each reading of pixels that it adapts to."""
    looks: list[tuple[int, list[int]]] = []
    seen = task.unlabelled or task.support
    pixels = seen.pixels

    def watched(view: int, rows: Tensor) -> Tensor:
        looks.append((view, rows.tolist()))
        return pixels(view, rows)

    part = "support" if task.unlabelled is None else "unlabelled"
    return replace(task, **{part: replace(seen, pixels=watched)}), looks  # type: ignore[arg-type]
