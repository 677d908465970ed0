"""Reads a checkpoint, and checks that it was fine-tuned from a given pre-trained image tower."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bolt.clip.checkpoint_conversion import FAR, ConvertedTower, convert_image_tower, distance_moved
from bolt.clip.checkpoint_files import UnreadableCheckpoint, config_file
from bolt.clip.checkpoint_reading import read_checkpoint
from bolt.clip.huggingface import stated_by_config
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower_shape import TowerShape
from bolt.util.json_text import read_json


@dataclass(frozen=True)
class ExaminedCheckpoint(ConvertedTower):
    """A checkpoint that can be a source. ``notes`` also has ``warning``, if there is one.

    Attributes:
        distance: norm of the checkpoint's task vector, relative to the norm of the pre-trained tower.
        warning: a text if the distance exceeds :data:`bolt.clip.checkpoint_conversion.FAR`; otherwise empty.
    """

    distance: float
    warning: str

    @property
    def summary(self) -> str:
        """The layout and the distance in one line."""
        return f"{self.layout}; distance from the pre-trained tower: {100 * self.distance:.2f} % of its norm"


def examine_checkpoint(path: Path, frozen: Mapping[str, Tensor], shape: TowerShape) -> ExaminedCheckpoint:
    """Read and convert a checkpoint, and check that it was fine-tuned from a pre-trained tower.

    Args:
        path: a file of the checkpoint or its folder, see :func:`bolt.clip.checkpoint_reading.read_checkpoint`.
        frozen: the tensors of the pre-trained tower, by open_clip's visual names.
        shape: the shape of the pre-trained tower. A configuration beside the checkpoint must agree with it.

    Raises:
        UnreadableCheckpoint: if the checkpoint or its configuration cannot be read.
        TensorMismatch: if the checkpoint does not fit the backbone or equals the pre-trained tower, or if its
            activation, number of heads or epsilon differs from the backbone's. The message names the checkpoint.
    """
    try:
        converted = convert_image_tower(read_checkpoint(path), frozen)
        distance = distance_moved(converted, frozen)
    except TensorMismatch as error:
        raise TensorMismatch(f"{path}: {error}") from None
    if "class_embedding" in frozen:  # timm's towers have no shape of their own
        _check_config(path, shape)
    far = f"{distance:.2f} norms from the pre-trained tower: was it fine-tuned from other weights?"
    warning = far if distance > FAR else ""
    notes = (*converted.notes, *filter(None, [warning]))
    return ExaminedCheckpoint(converted.tensors, converted.layout, notes, distance, warning)


def _check_config(path: Path, shape: TowerShape) -> None:
    """Raise an error if the configuration beside the tensors states another activation, head count or epsilon."""
    if (found := config_file(path)) is None:
        return
    try:
        stated = stated_by_config(read_json(found), ("activation", "heads", "epsilon"))
    except (ValueError, OSError, AttributeError, ArithmeticError, TypeError) as error:
        raise UnreadableCheckpoint(f"{found}: cannot be used: {error}") from None
    for name, theirs in stated.items():
        ours = getattr(shape, name)
        if not (math.isclose(theirs, ours) if isinstance(theirs, float) else theirs == ours):
            raise TensorMismatch(
                f"{found}: the checkpoint was made with {name} {theirs!r}, the backbone has {ours!r}; use the "
                "checkpoint with the backbone that it was fine-tuned from: any other backbone gives wrong features"
            )
