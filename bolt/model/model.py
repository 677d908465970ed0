"""A finished model, which predicts the labels of images with an adapted image tower and its classifier.

Shape legend: B images, S image side, D embedding width, C classes, H, W height and width.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bolt.clip.augment import evaluation_view
from bolt.clip.backbone import Backbone
from bolt.clip.image_files import UPRIGHT, Reading, open_named
from bolt.clip.input_size import InputSize
from bolt.clip.precision import plain_torch
from bolt.clip.preprocess import check_pixels, evaluation_pixels, normalise
from bolt.model.saving import About, Form, ModelParts, save
from bolt.task.classifiers import Classifier, UnknownClassifier
from bolt.task.scoring import NonFiniteLogits
from bolt.task.task import Adapted

ImageInput = Image.Image | Tensor | str | Path
"""A Pillow image, the path of an image file, or a uint8 RGB tensor (3, H, W)."""

_BATCH = 256


def check_are_images(images: object) -> None:
    """Raise ``TypeError`` if ``images`` is a single image, or an object without a length or without an order."""
    if isinstance(images, str | Path | Image.Image | set | frozenset | Mapping) or not isinstance(images, Sized):
        kind = type(images).__name__
        raise TypeError(f"images must be a list of images, whose order counts, not a {kind}; pass one image as [image]")


def check_is_image(image: object) -> None:
    """Raise ``TypeError`` if ``image`` is no image, or a tensor that is not uint8 RGB (3, H, W) with H, W > 0.

    Without this check, a tensor of values from 0 to 1 would be taken for a nearly black image.
    """
    if isinstance(image, Tensor):
        if image.dtype != torch.uint8 or image.ndim != 3 or len(image) != 3 or not image.numel():
            raise TypeError(f"an image's tensor is uint8 RGB (3, H, W), not {image.dtype} {tuple(image.shape)}")
    elif not isinstance(image, Image.Image | str | Path) and not hasattr(image, "read"):
        kind = type(image).__name__
        hint = "take the images out of the pairs" if isinstance(image, tuple) else "see Image.fromarray"
        raise TypeError(f"an image is a Pillow image, the path of a file or a tensor, not {kind}; {hint}")


def check_labelled_images(images: Sequence[ImageInput], labels: Sequence[int], class_names: Sequence[str]) -> None:
    """Raise ``TypeError`` for what is no image, and ``ValueError`` for labels that contradict the images' paths.

    They do if a path has two labels, or if no image in the folder named like a class has its label. In the second case,
    the names are in another order than the labels, as with ``os.listdir`` beside torchvision's ``ImageFolder``.
    ``labels`` may be empty.
    """
    first: dict[str, int] = {}
    found = defaultdict[str, set[str]](set)  # name of a folder -> the names of the classes of its images
    for image, label in zip_longest(images, labels):  # once, because a sequence may decode an image for each access
        check_is_image(image)
        if label is None:
            continue
        path = "" if isinstance(image, Tensor) else str(getattr(image, "filename", image))
        if isinstance(image, str | Path) and first.setdefault(path, label) != label:
            raise ValueError(f"{path} has two labels, {class_names[first[path]]!r} and {class_names[label]!r}")
        found[_plain(os.path.basename(os.path.dirname(path)))].add(_plain(class_names[label]))
    for name in class_names:
        if (others := found.get(_plain(name), set())) and _plain(name) not in others:
            what = f"the images in the folder of {name!r} have the labels of others, such as {min(others)!r}"
            raise ValueError(f"{what}: class_names must have the order of the labels")


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name).casefold()


@dataclass(frozen=True)
class Prediction:
    """The predicted label of one image.

    Attributes:
        label: name of the most probable class.
        score: probability of this class, by the softmax of the logits.
        scores: name of each class -> its probability. Classes with equal names, such as the two classes ``missile`` of
            ImageNet, have one entry with the highest of their probabilities.
    """

    label: str
    score: float
    scores: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Model(ModelParts):
    """An image classifier. :class:`bolt.model.saving.ModelParts` describes its attributes."""

    @classmethod
    def from_adapted(
        cls, backbone: Backbone, adapted: Adapted, class_names: Sequence[str], *,
        notes: Mapping[str, Any] | None = None, reading: Reading = UPRIGHT,
    ) -> Model:  # fmt: skip
        """Build a model from the result of a method.

        Raises ``bolt.task.classifiers.UnknownClassifier`` if the classifier is a plain function, which cannot be saved.
        """
        if not isinstance(adapted.classify, Classifier):
            raise UnknownClassifier(
                "the method's classifier is a plain function; only a bolt.task.classifiers.Classifier can be saved"
            )
        about = About(
            tuple(class_names),
            backbone.name,
            backbone.digest,
            backbone.logit_scale,
            backbone.mean,
            backbone.std,
            backbone.input_size.resize,
            backbone.input_size.interpolation,
            dict(notes or {}),
            reading.bands,
            reading.range,
        )
        return cls(adapted.tower or backbone.tower, adapted.classify, about, backbone.tower, adapted.change)

    @property
    def device(self) -> torch.device:
        """Device of the tower."""
        return next(self.tower.parameters()).device

    def pixels(self, images: Sequence[ImageInput]) -> Tensor:
        """Return the images upright and after the benchmark's evaluation transform, uint8 (B, 3, S, S)."""
        check_are_images(images)
        size = InputSize(self.tower.shape.image_size, self.about.resize, self.about.interpolation)
        pixels = [self._pixels(image, size) for image in images]
        return torch.stack(pixels) if pixels else torch.empty(0, 3, size.side, size.side, dtype=torch.uint8)

    def _pixels(self, image: ImageInput, size: InputSize) -> Tensor:
        check_is_image(image)
        if isinstance(image, Tensor):
            return evaluation_view(image, size)
        return torch.from_numpy(evaluation_pixels(open_named(image, self.about.reading), size))

    @plain_torch()
    def logits(self, images: Sequence[ImageInput] | Tensor) -> Tensor:
        """Return the logits (B, C) of images, or of uint8 pixels (B, 3, S, S) from :meth:`pixels`."""
        pixels_B3SS = images if isinstance(images, Tensor) else self.pixels(images)
        check_pixels(pixels_B3SS, self.tower.shape.image_size)
        if not len(pixels_B3SS):
            return torch.empty(0, self.classifier.class_count, device=self.device)
        about, parts = self.about, []
        with torch.inference_mode():
            for batch in torch.split(pixels_B3SS, _BATCH):
                features_BD = self.tower(normalise(batch, about.mean, about.std, self.device))
                parts.append(self.classifier(features_BD))
        return torch.cat(parts)

    def predict(self, images: Sequence[ImageInput] | Tensor) -> list[Prediction]:
        """Predict the label and the class probabilities of every image. The arguments are those of :meth:`logits`.

        Raises ``TypeError`` if ``images`` is a single image, or holds an object that is no image. Raises ``OSError``
        with the path of an image that cannot be decoded, and ``bolt.task.scoring.NonFiniteLogits`` for a model that
        gives NaN.
        """
        names = self.about.class_names
        found = []
        logits_BC = self.logits(images)
        if not logits_BC.isfinite().all():
            raise NonFiniteLogits("the model gives NaN or infinite logits")
        for scores in logits_BC.softmax(dim=-1).tolist():
            best = max(range(len(scores)), key=scores.__getitem__)
            by_name: dict[str, float] = {}
            for name, score in zip(names, scores, strict=True):
                by_name[name] = max(score, by_name.get(name, score))
            found.append(Prediction(names[best], scores[best], by_name))
        return found

    def save(self, folder: Path | str, form: Form = "adapter", *, with_basis: bool = False) -> None:
        """Write the model into a new folder; see :func:`bolt.model.saving.save`."""
        save(self, folder, form, with_basis=with_basis)
