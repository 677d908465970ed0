"""BOLT: a basis of the other tasks' singular directions, and a few coefficients trained on it.

Per weight matrix, the leading directions of every source's task vector are orthogonalised together; the sources'
mean coefficients in that basis, times a scale chosen on the support, are the start; the coefficients alone are
trained. ``bolt_pooled`` stops at the start. Tensors that are not matrices stay as pre-trained.

Shape legend: N support images, B batch, C classes, r coefficients of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bolt.backbone import matrix_names
from bolt.coefficients import attach, merged
from bolt.methods.base import Method, Work, register
from bolt.objectives import cross_entropy
from bolt.task import EVALUATION_VIEW, Adapted, Task, cosine_classifier
from bolt.tower import ImageTower
from bolt.training import Recipe, fit

_SWEEP_BATCH = 256


@dataclass(frozen=True)
class PooledSettings:
    """Attributes:
    top_k: directions per source and matrix, fewer where the matrix is too small for all sources.
    alphas: candidate scales of the pooled start; the most accurate on the support is used, the smallest if
        several are. A single candidate is used as it is.
    """

    top_k: int = 12
    alphas: tuple[float, ...] = (1.0, 3.0, 5.0, 7.0, 10.0)

    def __post_init__(self) -> None:
        if self.top_k < 1 or not self.alphas:
            raise ValueError("top_k is at least 1 and alphas names at least one candidate")


@dataclass(frozen=True)
class BoltSettings(Recipe, PooledSettings):
    """The start's settings and the training recipe, whose defaults are the paper's."""

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        PooledSettings.__post_init__(self)


@dataclass(frozen=True)
class Start:
    """The training-free start: a tower whose coefficients are alpha times the pooled ones."""

    tower: ImageTower
    coefficients: Mapping[str, nn.Parameter]
    pooled: Mapping[str, Tensor]
    alpha: float


def pooled_start(task: Task, settings: PooledSettings) -> Start:
    """Attach the sources' bases to the tower and choose the scale of the pooled coefficients on the support."""
    if task.sources is None:
        raise ValueError("BOLT is made of the sources' task vectors, and this task has none")
    matrices = matrix_names(task.backbone.tower.state_dict_open_clip())
    bases = {name: task.sources.pooled_basis(name, settings.top_k) for name in matrices}
    tower, coefficients = attach(
        task.backbone.tower,
        {name: pooled.basis for name, pooled in bases.items()},
        {name: pooled.pooled for name, pooled in bases.items()},
        task.protocol.sigma_sign,
    )
    if not coefficients:
        raise ValueError("every task vector of the sources is zero; there is nothing to build a basis of")
    pooled = {name: coefficient.detach().clone() for name, coefficient in coefficients.items()}

    def scale_by(alpha: float) -> None:
        with torch.no_grad():
            for name, coefficient in coefficients.items():
                torch.mul(pooled[name], alpha, out=coefficient)

    alpha = settings.alphas[0]
    if len(settings.alphas) > 1:
        alpha = _most_accurate(task, sorted(settings.alphas), scale_by, tower)
    scale_by(alpha)
    return Start(tower, coefficients, pooled, alpha)


def _most_accurate(task: Task, alphas: list[float], scale_by: Callable[[float], None], tower: ImageTower) -> float:
    """The scale with the most correct support images; the first of several."""
    view = EVALUATION_VIEW if task.protocol.alpha_views == "plain" else EVALUATION_VIEW + 1
    classify = cosine_classifier(task.head_CD, task.backbone.logit_scale)
    labels_N = task.support.labels_N
    correct = []
    for alpha in alphas:
        scale_by(alpha)
        candidate = merged(tower)
        correct.append(0)
        for rows in torch.split(torch.arange(len(labels_N)), _SWEEP_BATCH):
            features_BD = task.backbone.encode_images(task.support.pixels(view, rows), candidate)
            predicted = classify(features_BD).argmax(dim=-1).to(labels_N.device)
            correct[-1] += int((predicted == labels_N[rows]).sum())
    return alphas[correct.index(max(correct))]


def adapt_pooled(task: Task, settings: PooledSettings) -> Adapted:
    """The start alone: nothing is trained."""
    return _adapted(task, pooled_start(task, settings), trained=False)


def adapt(task: Task, settings: BoltSettings) -> Adapted:
    """The start, then its coefficients trained on the support's augmented views."""
    start, backbone = pooled_start(task, settings), task.backbone
    classify = cosine_classifier(task.head_CD, backbone.logit_scale)
    labels_N = task.support.labels_N.to(backbone.device)

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        images = backbone.normalise(task.support.pixels(epoch + 1, rows))
        return cross_entropy(classify(start.tower(images)), labels_N[rows.to(backbone.device)])

    fit(
        start.coefficients.values(),
        loss_of_rows,
        task.support.order,
        settings,
        task.protocol,
        task.report,
    )
    return _adapted(task, start, trained=True)


def _adapted(task: Task, start: Start, trained: bool) -> Adapted:
    count = sum(coefficient.numel() for coefficient in start.coefficients.values())
    final = {f"trained/{name}": value.detach().clone() for name, value in start.coefficients.items()}
    return Adapted(
        classify=cosine_classifier(task.head_CD, task.backbone.logit_scale),
        tower=merged(start.tower),
        trainable_parameters=count if trained else 0,
        details={"alpha": start.alpha, "coefficients": count, "matrices": len(start.coefficients)},
        coefficients={f"pooled/{name}": value for name, value in start.pooled.items()} | (final if trained else {}),
    )


def _work(support_size: int, settings: PooledSettings) -> Work:
    sweep = len(settings.alphas) * support_size if len(settings.alphas) > 1 else 0
    epochs = settings.epochs if isinstance(settings, BoltSettings) else 0
    return Work(forward=sweep, training=epochs * support_size)


PAPER = "https://github.com/jhpark-ai/BOLT"
register(
    Method(
        name="bolt",
        title="BOLT",
        paper=PAPER,
        settings=BoltSettings,
        adapt=adapt,
        uses_sources=True,
        trains_tower=True,
        work=_work,
        tiny={"top_k": 2, "alphas": (1.0, 3.0), "epochs": 2, "batch_size": 8},
    )
)
register(
    Method(
        name="bolt_pooled",
        title="BOLT, training-free",
        paper=PAPER,
        settings=PooledSettings,
        adapt=adapt_pooled,
        uses_sources=True,
        trains_tower=True,
        work=_work,
        tiny={"top_k": 2, "alphas": (1.0, 3.0)},
    )
)
