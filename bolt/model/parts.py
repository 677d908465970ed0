"""What a finished model consists of: an adapted image tower, a classifier, and how both came about.

Shape legend: B images, D embedding width, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.clip.tower_changes import changed_tensors
from bolt.spectral.spectral_change import SpectralChange
from bolt.task.classifiers import Classifier


@dataclass(frozen=True)
class About:
    """What a model is, beside its numbers.

    Attributes:
        class_names: the labels, in the order of the logits.
        backbone: name of the CLIP it was adapted from.
        backbone_digest: what that CLIP's frozen image tower was (:attr:`bolt.clip.backbone.Backbone.digest`).
        logit_scale: of that CLIP.
        mean, std: per channel, of pixels in [0, 1].
        exif_rotation: whether a photograph is turned as its EXIF data say.
        notes: what whoever made it wants to be known: the method, the cell, its accuracy, the data's licence.
    """

    class_names: tuple[str, ...]
    backbone: str
    backbone_digest: str
    logit_scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    exif_rotation: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ModelParts:
    """The parts of a model, which is all that is written to disk.

    Attributes:
        tower: the adapted image tower, frozen.
        classifier: raw features (B, D) -> logits (B, C).
        about: labels, preprocessing and origin.
        frozen: the tower it was adapted from, the same object as ``tower`` where that did not change; ``None`` for a
            model that was read in a merged form.
        change: the tower's change as coefficients in a basis, where that is what it is.
    """

    tower: ImageTower
    classifier: Classifier
    about: About
    frozen: ImageTower | None = None
    change: SpectralChange | None = None

    def __post_init__(self) -> None:
        if len(self.about.class_names) != self.classifier.class_count:
            raise ValueError(
                f"{len(self.about.class_names)} class names for a classifier of {self.classifier.class_count} classes"
            )

    def changed_tensors(self) -> dict[str, Tensor]:
        """The tower's tensors that differ from the frozen one's and are no part of ``change``, by open_clip's names.

        Raises ``ValueError`` for a model read in a merged form without its backbone.
        """
        if self.frozen is None:
            raise ValueError("this model was read in a merged form; what changed is known with its backbone only")
        if self.frozen is self.tower:
            return {}
        explained = self.change.coefficients if self.change else {}
        changed = changed_tensors(self.tower, self.frozen)
        return {name: tensor for name, tensor in changed.items() if name not in explained}
