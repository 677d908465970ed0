"""The input of an adaptation method (:class:`Task`) and its output (:class:`Adapted`).

A task holds everything a method may see of its target: the frozen backbone, the text head, the labelled images, the
class names and the source models. It holds no test labels, so a method cannot read them. It holds test images on the
test-time track only.

Shape legend: N support images, C classes, D joint embedding width, S image side, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
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
"""Number of the view without augmentation; views 1, 2, ... are augmented, one per epoch."""


@dataclass(frozen=True)
class Support:
    """The labelled images that a method may learn from, k per class.

    Attributes:
        labels_N: class of each image.
        indices_N: position of each image in the dataset's training split.
        pixels: ``pixels(view, rows)`` -> uint8 (len(rows), 3, S, S). View 0 is the evaluation transform; views 1, 2,
            ... are augmented. A view depends on (dataset, seed, view, image) only, so every method and every k sees the
            same pixels.
        features: ``features(view)`` -> float32 (N, D), the frozen tower's raw (not normalised) features of all images
            in that view. They are computed once and shared by the methods that do not train the tower.
        order: ``order(epoch)`` -> a permutation (N,) of the rows, keyed by (dataset, seed, epoch, N).
    """

    labels_N: Tensor
    indices_N: Tensor
    pixels: Callable[[int, Tensor], Tensor]
    features: Callable[[int], Tensor]
    order: Callable[[int], Tensor]

    def __len__(self) -> int:
        return len(self.labels_N)


def _no_views(count: int) -> Tensor:
    raise ValueError(
        "the task has no views of its test images: the method's registration does not say that it reads them"
    )


@dataclass(frozen=True)
class Unlabelled:
    """The target's test images without labels, which a method adapts to on the test-time track.

    Attributes:
        size: number of images, N.
        pixels: ``pixels(view, rows)`` -> uint8 (len(rows), 3, S, S); view 0 is the evaluation transform, higher views
            are augmented as for a support.
        features: ``features()`` -> float32 (N, D), the frozen tower's raw features of view 0.
        view_features: ``view_features(count)`` -> float32 (N, count, D), features of view 0 and of crops of 8 to 100
            per cent of each image; for a method that declares ``test_views``.
        order: ``order(stream, epoch, size)`` -> a permutation (size,), keyed by (dataset, seed, stream, epoch, size).
    """

    size: int
    pixels: Callable[[int, Tensor], Tensor]
    features: Callable[[], Tensor]
    order: Callable[[str, int, int], Tensor]
    view_features: Callable[[int], Tensor] = _no_views

    def __len__(self) -> int:
        return self.size


PROMPTS = ("a photo of a {}.",)
"""The prompt templates where none are given."""


@dataclass(frozen=True)
class ClassText:
    """The words of a task's classes, for a method that trains on the text side; see ``Backbone.text_tower``.

    Attributes:
        class_names: the names, in the order of the labels.
        templates: prompts with ``{}`` for the class name; the text head averages over them.
    """

    class_names: tuple[str, ...]
    templates: tuple[str, ...]

    @classmethod
    def of(cls, class_names: Sequence[str], prompts: Sequence[str] | Mapping[str, Sequence[str]]) -> ClassText:
        """Return the text of a task. For sentences by class, the templates are :data:`PROMPTS`."""
        return cls(tuple(class_names), PROMPTS if isinstance(prompts, Mapping) else tuple(prompts))


@dataclass(frozen=True)
class Task:
    """One adaptation problem.

    Attributes:
        backbone: the frozen CLIP.
        head_CD: unit-norm mean text embedding of each class; logits are ``logit_scale * f @ head.T`` for unit f.
        support: the labelled images.
        sources: the other datasets' models; ``None`` for a method that does not use them.
        protocol: the evaluation protocol.
        dataset: name of the target, for seeds only.
        seed: seed of the support draw.
        report: ``report(epoch, metrics)`` is called after each training epoch with numbers to plot.
        unlabelled: the test images without labels on the ``tta`` track, where the support is empty; else ``None``.
        oracle: accuracy (per cent) of a classifier on the target's test split; ``None`` unless the protocol has a
            switch that selects on the test split.
        after_epoch: ``after_epoch(epoch, make)`` is called after each training epoch; ``make()`` returns the classifier
            at that epoch. The ``meta`` track scores it.
        initial: tensors of the meta-learned image tower by open_clip's names, for a method that starts from it.
        validation: the labelled images that the protocol lets the method choose settings on, with view 0 only; ``None``
            by default.
        text: class names and prompts; ``None`` for a method that reads the text head only.
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
    validation: Support | None = None
    text: ClassText | None = None

    @property
    def class_text(self) -> ClassText:
        """The class names and prompts. Raises ``ValueError`` if the task has none."""
        if self.text is None:
            raise ValueError("the task has no class names: the method's registration does not say that it reads them")
        return self.text

    @property
    def test_images(self) -> Unlabelled:
        """The unlabelled test images. Raises ``ValueError`` if the task has none."""
        if self.unlabelled is None:
            raise ValueError("the method adapts to unlabelled test images, and this task has none; use the tta track")
        return self.unlabelled


@dataclass(frozen=True)
class Adapted:
    """The result of a method: an image tower and a classifier of its features.

    Attributes:
        classify: raw features (B, D) -> logits (B, C). Only a :class:`bolt.task.classifiers.Classifier` can be saved.
        tower: the adapted image tower; ``None`` for the frozen one, so that cached features can be used.
        trainable_parameters: number of trained parameters.
        details: values that the method chose, e.g. ``{"alpha": 3.0}``; the tracker and the report show them.
        coefficients: small named tensors to store with the result (BOLT: s of each matrix, pooled and trained).
        change: the tower's change as coefficients in a basis, if the method makes such a change. A saved model is then
            smaller.
        embed_classes: class names -> unit text embeddings (C, D), if the method changed the text side. Classes that the
            method was not adapted to get their embeddings from this function, and without it from the zero-shot head.
        fixed_NC: logits of the task's unlabelled images in their order, by which the images are scored. Given if
            ``classify`` cannot repeat a prediction: it was made when the image came in a stream, or from views of it.
        source_key: given if tower and classifier depend on the backbone, the text head, the sources and the values in
            the key only, such as settings and a chosen scale. Tasks with equal keys then have equal predictions, so one
            task's predictions serve all of them.
    """

    classify: Callable[[Tensor], Tensor]
    tower: ImageTower | None = None
    trainable_parameters: int = 0
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    coefficients: Mapping[str, Tensor] = field(default_factory=dict)
    change: SpectralChange | None = None
    embed_classes: Callable[[Sequence[str]], Tensor] | None = None
    fixed_NC: Tensor | None = None
    source_key: Hashable = None


def cosine_classifier(head_CD: Tensor, logit_scale: float) -> CosineClassifier:
    """Return the zero-shot classifier: features (B, D) -> ``logit_scale * cos(feature, class)``, (B, C)."""
    return CosineClassifier(head_CD, logit_scale)
