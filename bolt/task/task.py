"""The input of an adaptation method (:class:`Task`) and its output (:class:`Adapted`).

A task holds everything that a method may see: the frozen backbone, the text head, the labelled images, the class names
and the source models. A task never holds test labels, so a method cannot read them. It holds test images on the
test-time tracks only.

Shape legend: N support images, C classes, D joint embedding width, S image side, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.protocol import Protocol
from bolt.spectral.sources import Sources
from bolt.spectral.spectral_change import SpectralChange
from bolt.task.classifiers import CosineClassifier

EVALUATION_VIEW = 0
"""The number of the view without augmentation. Views 1, 2, ... are augmented, one for each epoch."""


@dataclass(frozen=True)
class Support:
    """The labelled images that a method may learn from, k per class.

    Attributes:
        labels_N: class of each image.
        indices_N: position of each image in the dataset's training split.
        pixels: ``pixels(view, rows)`` -> uint8 (len(rows), 3, S, S). View 0 is the evaluation transform; views 1, 2,
            ... are augmented. A view depends on (dataset, seed, view, image) only, so the pixels are the same for
            every method and every k.
        features: ``features(view)`` -> float32 (N, D), the frozen tower's raw (not normalised) features of all images
            in that view. They are computed once, and shared by the methods that do not train the tower.
        order: ``order(epoch)`` -> a permutation (N,) of the rows, which depends on (dataset, seed, epoch, N) only.
    """

    labels_N: Tensor
    indices_N: Tensor
    pixels: Callable[[int, Tensor], Tensor]
    features: Callable[[int], Tensor]
    order: Callable[[int], Tensor]

    def __len__(self) -> int:
        return len(self.labels_N)


def _no_views(count: int) -> Tensor:
    raise ValueError("the task has no views of its test images: declare test_views where the method is registered")


@dataclass(frozen=True)
class Unlabelled:
    """The target's test images without labels, which a method adapts to on the test-time track.

    Attributes:
        size: number of images, N.
        pixels: ``pixels(view, rows)`` -> uint8 (len(rows), 3, S, S); view 0 is the evaluation transform, higher views
            are augmented like those of a support.
        features: ``features()`` -> float32 (N, D), the frozen tower's raw features of view 0.
        view_features: ``view_features(count)`` -> float32 (N, count, D), features of view 0 and of ``count - 1`` crops
            of 8 to 100 per cent of each image. Only a method that declares ``test_views`` can call it.
        order: ``order(stream, epoch, size)`` -> a permutation (size,), which depends on (dataset, seed, stream, epoch,
            size) only. ``stream`` is a name; permutations under two names are independent.
    """

    size: int
    pixels: Callable[[int, Tensor], Tensor]
    features: Callable[[], Tensor]
    order: Callable[[str, int, int], Tensor]
    view_features: Callable[[int], Tensor] = _no_views

    def __len__(self) -> int:
        return self.size


PROMPTS = ("a photo of a {}.",)
"""The default prompt templates."""


@dataclass(frozen=True)
class ClassText:
    """The class names and prompts of a task, for a method that trains the text side; see ``Backbone.text_tower``.

    Attributes:
        class_names: the names, in the order of the labels.
        templates: prompts with ``{}`` for the class name; the text head averages over the templates.
    """

    class_names: tuple[str, ...]
    templates: tuple[str, ...]

    @classmethod
    def of(cls, class_names: Sequence[str], prompts: Sequence[str] | Mapping[str, Sequence[str]]) -> ClassText:
        """Return the class names together with templates.

        ``prompts`` are the templates, or a mapping from class names to sentences. Such sentences are no templates and
        are not kept; the templates are then :data:`PROMPTS`.
        """
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
        dataset: name of the target, which methods use in seeds only.
        seed: seed of the support draw.
        report: a method calls ``report(epoch, metrics)`` after each training epoch, with numbers to plot.
        unlabelled: the test images without labels on a test-time track, where the support is empty; otherwise ``None``.
        oracle: ``oracle(adapted)`` -> the accuracy (per cent) of a method's result on the target's test split; ``None``
            unless the protocol has a switch that selects on the test split.
        after_epoch: a method calls ``after_epoch(epoch, make)`` after each training epoch; ``make()`` returns the
            result so far, which the ``meta`` track scores.
        initial: tensors of the meta-learned image tower by open_clip's names, for a method that starts from this tower.
        validation: labelled images on which the method may choose settings, with view 0 only; ``None`` if the protocol
            gives none.
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
    def text_head(self) -> CosineClassifier:
        """The text head as a classifier: the cosines with ``head_CD``, times the logit scale."""
        return CosineClassifier(self.head_CD, self.backbone.logit_scale)

    @property
    def class_text(self) -> ClassText:
        """The class names and prompts. Raises ``ValueError`` if the task has none."""
        if self.text is None:
            raise ValueError("the task has no class names: declare trains_text where the method is registered")
        return self.text

    @property
    def test_images(self) -> Unlabelled:
        """The unlabelled test images. Raises ``ValueError`` if the task has none."""
        if self.unlabelled is None:
            raise ValueError("the task has no test images: only tasks of tta, tta_stream and tta_image have them")
        return self.unlabelled


@dataclass(frozen=True)
class Adapted:
    """The result of a method: an image tower and a classifier of its features.

    Attributes:
        classify: raw features (B, D) -> logits (B, C). Only a :class:`bolt.task.classifiers.Classifier` can be saved.
        tower: the adapted image tower; ``None`` for the frozen tower, whose cached features are then used.
        trainable_parameters: number of trained parameters.
        details: values that the method chose, e.g. ``{"alpha": 3.0}``; the tracker and the report show them.
        coefficients: small named tensors that the method found, such as BOLT's pooled and trained coefficients of each
            matrix. They are for the caller to look at; no result stores them.
        change: the tower's change as coefficients in a basis, if the method makes such a change. A model saved in this
            form is smaller.
        embed_classes: class names -> unit text embeddings (C, D), if the method changed the text side. It is used for
            classes that the method was not adapted to. Without it, these classes get their zero-shot embeddings.
        fixed_NC: logits of the task's unlabelled images, in their order; the images are scored by these logits. A
            method gives them if it predicted each image from several views, or at the image's position in a stream,
            because ``classify`` cannot repeat such predictions.
        source_key: the values, such as settings and a chosen scale, that determine tower and classifier for a given
            backbone, text head and set of sources. ``None`` if tower or classifier depend on anything else. Results
            with equal keys have equal predictions, which are therefore computed once.
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
