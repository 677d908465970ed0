"""The size of an image tower's input, and how images are resized to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Resize = Literal["shortest", "squash", "longest"]
Interpolation = Literal["bicubic", "bilinear"]

LARGEST_NORM = 4
"""A limit for the mean and the standard deviation of a channel. If pixels are in [0, 1], both are below the limit. If
pixels are from 0 to 255, both are above it."""


@dataclass(frozen=True)
class InputSize:
    """The size of a tower's input, and how images are resized to it. Names are those of open_clip.

    Attributes:
        side: side of the square input, in pixels.
        resize: ``shortest`` resizes the shortest side to ``side`` and crops the centre, as CLIP does. ``squash``
            resizes both sides to ``side``, as SigLIP does. ``longest`` resizes the longest side to ``side`` and pads
            the other side with black.
        interpolation: interpolation of the resize.
    """

    side: int
    resize: Resize = "shortest"
    interpolation: Interpolation = "bicubic"

    def encoded(self) -> Any:
        """Return the value that stands for this size when the fingerprint of an artifact is computed.

        For CLIP's own way to resize, the value is the side alone, as it was before the other fields were added. So
        older artifacts keep their fingerprints.
        """
        plain = self == InputSize(self.side)
        return self.side if plain else {"side": self.side, "resize": self.resize, "interpolation": self.interpolation}

    def __str__(self) -> str:
        others = (self.resize, self.interpolation)
        return "-".join([str(self.side), *(word for word in others if word not in ("shortest", "bicubic"))])

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image is resized, before it is cropped or padded.

        With ``shortest``, sizes are rounded as in torchvision. With ``longest``, they are rounded as in open_clip.
        """
        if self.resize == "squash":
            return self.side, self.side
        if self.resize == "longest":
            ratio = max(height, width) / self.side
            return round(height / ratio), round(width / ratio)
        short = min(height, width)
        return self.side * height // short, self.side * width // short


def check_preprocessing(stated: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for values that a backbone cannot have. ``stated`` has open_clip's names."""
    if stated.get("resize_mode") == "longest" and stated.get("fill_color"):
        raise ValueError(f"its fill_color is {stated['fill_color']}, and images are padded with black (0) only")
    for name, known in (("resize_mode", get_args(Resize)), ("interpolation", get_args(Interpolation))):
        if stated.get(name) and stated[name] not in known:
            raise ValueError(f"its {name} is {stated[name]!r}, and only {', '.join(known)} are possible")
    for name in ("mean", "std"):
        lowest = 0 if name == "std" else -LARGEST_NORM
        if (values := stated.get(name)) and not (len(values) == 3 and all(lowest < x < LARGEST_NORM for x in values)):
            raise ValueError(f"its {name} is {values}, not three numbers for pixels in [0, 1]")
