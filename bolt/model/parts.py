"""The parts of a finished model that are saved to disk: the image tower, the classifier and their metadata.

Shape legend: B images, D embedding width, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bolt.clip.image_files import Reading
from bolt.clip.input_size import Interpolation, Resize
from bolt.clip.tower import ImageTower
from bolt.spectral.spectral_change import SpectralChange
from bolt.task.classifiers import Classifier


@dataclass(frozen=True)
class About:
    """Metadata of a model: labels, preprocessing, backbone and notes.

    Attributes:
        class_names: the labels, in the order of the logits.
        backbone: name of the CLIP from which the model was adapted.
        backbone_digest: digest of the CLIP's frozen image tower (:attr:`bolt.clip.backbone.Backbone.digest`).
        logit_scale: the factor by which the CLIP multiplies a cosine to get a logit.
        mean, std: normalisation per channel, for pixels in [0, 1].
        resize, interpolation: the way in which images are resized, see :class:`bolt.clip.input_size.InputSize`.
        bands, range: how images of measured values, such as satellite images, are read; see
            :class:`bolt.clip.image_files.Reading`.
        notes: free-form notes, such as the method, its accuracy or the licence of the data.
    """

    class_names: tuple[str, ...]
    backbone: str
    backbone_digest: str
    logit_scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: Resize = "shortest"
    interpolation: Interpolation = "bicubic"
    notes: Mapping[str, Any] = field(default_factory=dict)
    bands: tuple[int, ...] | None = None
    range: tuple[float, float] | None = None

    @property
    def reading(self) -> Reading:
        """How the model reads images. Raises ``ValueError`` for invalid bands and for an invalid range."""
        return Reading(bands=self.bands, range=self.range)


@dataclass(frozen=True, eq=False)
class ModelParts:
    """An adapted image tower, its classifier and its metadata.

    Attributes:
        tower: the adapted image tower, frozen.
        classifier: raw features (B, D) -> logits (B, C).
        about: labels, preprocessing, backbone and notes.
        frozen: the pre-trained tower. It is the same object as ``tower`` if the method did not change the tower, and
            ``None`` for a model that was loaded from a whole tower without the backbone.
        change: the tower's change as coefficients in a basis, if the method makes such a change.

    Raises:
        ValueError: if the numbers of class names and of the classifier's classes differ.
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
        """Return open_clip's name -> tensor for the tower's changed tensors that ``change`` does not describe.

        Raises ``ValueError`` if ``frozen`` is ``None``.
        """
        if self.frozen is None:
            raise ValueError("this model was loaded without its backbone, so its changed tensors are unknown")
        if self.frozen is self.tower:
            return {}
        own, before = dict(self.tower.named_parameters()), dict(self.frozen.named_parameters())
        changed = [
            name
            for name, path in self.tower.tensor_paths().items()
            # Tensors that share memory are not compared, so this is fast if few tensors were trained.
            if path not in before
            or (own[path].data_ptr() != before[path].data_ptr() and not torch.equal(own[path], before[path]))
        ]
        state, explained = self.tower.state_dict_open_clip(), self.change.coefficients if self.change else {}
        return {name: state[name] for name in changed if name not in explained}
