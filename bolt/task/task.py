"""What a method is given and what it gives back.

A :class:`Task` holds everything a method may see of its target: the frozen backbone, the text head, the support
images and the sources. Test labels are not in it, so a method cannot reach them; test images are in it on the test-time
track alone.

Shape legend: N support images, C classes, D joint embedding width, S image side, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from bolt.protocol import Protocol
from bolt.spectral.sources import Sources
from bolt.task.classifiers import CosineClassifier

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone
    from bolt.clip.tower import ImageTower
    from bolt.spectral.spectral_change import SpectralChange

EVALUATION_VIEW = 0
"""View number of the un-augmented image; views 1, 2, ... are the augmented ones, one per epoch."""


@dataclass(frozen=True)
class Support:
    """The k labelled images per class a method may learn from.

    Attributes:
        labels_N: class of each image.
        indices_N: position of each image in the dataset's training split.
        pixels: ``pixels(view, rows)`` -> uint8 (len(rows), 3, S, S). View 0 is the evaluation transform, views
            1, 2, ... are augmented; the view of an image depends on (dataset, seed, view, image) alone, so every
            method, and every k that contains the image, sees the same pixels.
        features: ``features(view)`` -> float32 (N, D), the frozen tower's raw (not normalised) features of
            ``pixels(view, all)``, encoded once and shared by the methods that never touch the tower.
        order: ``order(epoch)`` -> a permutation (N,) of the rows, keyed by (dataset, seed, epoch, N).
    """

    labels_N: Tensor
    indices_N: Tensor
    pixels: Callable[[int, Tensor], Tensor]
    features: Callable[[int], Tensor]
    order: Callable[[int], Tensor]

    def __len__(self) -> int:
        return len(self.labels_N)


@dataclass(frozen=True)
class Unlabelled:
    """The target's test images without their labels: what a method adapts to at test time.

    Attributes:
        size: how many images, N.
        pixels: ``pixels(view, rows)`` -> uint8 (len(rows), 3, S, S); view 0 is the evaluation transform, higher views
            are augmented as those of a support.
        features: ``features()`` -> float32 (N, D), the frozen tower's raw features of view 0.
        order: ``order(stream, lap, size)`` -> a permutation (size,), keyed by (dataset, seed, stream, lap, size).
    """

    size: int
    pixels: Callable[[int, Tensor], Tensor]
    features: Callable[[], Tensor]
    order: Callable[[str, int, int], Tensor]

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True)
class Task:
    """One adaptation problem.

    Attributes:
        backbone: the frozen CLIP.
        head_CD: unit-norm mean text embedding of each class; logits are ``logit_scale * f @ head.T`` for unit f.
        support: the labelled images.
        sources: the other datasets' models; ``None`` for a method that does not ask for them.
        protocol: the switches of the measurement.
        dataset: name of the target, for keyed seeds only.
        seed: the support draw's seed.
        report: ``report(epoch, metrics)`` is called after each epoch of training with numbers to plot.
        unlabelled: the test images without labels on the ``tta`` track, whose support is empty; else ``None``.
        oracle: accuracy (per cent) of a classifier on the target's test split, for the switches of ``published`` that
            select on it; ``None`` under every protocol that does not.
        after_epoch: ``after_epoch(epoch, make)`` is called after each epoch of training; ``make()`` gives the
            classifier as it then stands. The ``meta`` track scores it; nothing comes back.
        initial: the meta-learned image tower by open_clip names, for a method registered with ``meta``.
    """

    backbone: Backbone
    head_CD: Tensor
    support: Support
    sources: Sources | None
    protocol: Protocol
    dataset: str
    seed: int
    report: Callable[[int, Mapping[str, float]], None] = lambda epoch, metrics: None
    unlabelled: Unlabelled | None = None
    oracle: Callable[[Adapted], float] | None = None
    after_epoch: Callable[[int, Callable[[], Adapted]], None] = lambda epoch, make: None
    initial: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Adapted:
    """What a method returns: a classifier of images, as an image tower and a classifier of its features.

    Attributes:
        classify: raw features (B, D) -> logits (B, C); a :class:`bolt.task.classifiers.Classifier` can be saved as
        well. tower: the adapted image tower; ``None`` says the frozen one serves, so cached features can be used.
        trainable_parameters: how many numbers were trained.
        details: what the method chose, e.g. ``{"alpha": 3.0}``; shown in the tracker and the report.
        coefficients: named small tensors worth keeping (BOLT's s per matrix: pooled and trained).
        change: the tower's change as coefficients in a basis, where that is what it is; it says the same as ``tower``,
            in less room.
    """

    classify: Callable[[Tensor], Tensor]
    tower: ImageTower | None = None
    trainable_parameters: int = 0
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    coefficients: Mapping[str, Tensor] = field(default_factory=dict)
    change: SpectralChange | None = None


def cosine_classifier(head_CD: Tensor, logit_scale: float) -> CosineClassifier:
    """The zero-shot classifier: features (B, D) -> ``logit_scale * cos(feature, class)``, (B, C)."""
    return CosineClassifier(head_CD, logit_scale)
