"""The images that an image tower takes, and how an image of any size is brought to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Resize = Literal["shortest", "squash", "longest"]
Interpolation = Literal["bicubic", "bilinear"]


@dataclass(frozen=True)
class InputSize:
    """The images that a tower takes, and how an image is brought to that size. Names are as in open_clip.

    Attributes:
        side: of the square images, in pixels.
        resize: ``shortest`` brings the shortest side to ``side`` and crops the centre, as CLIP does; ``squash`` brings
            both sides to it, as SigLIP does; ``longest`` brings the longest side to it and pads the other with black.
        interpolation: of the resize.
    """

    side: int
    resize: Resize = "shortest"
    interpolation: Interpolation = "bicubic"

    def encoded(self) -> Any:
        """Return the side alone if the images are resized as CLIP does: older artifacts are named by it."""
        plain = self == InputSize(self.side)
        return self.side if plain else {"side": self.side, "resize": self.resize, "interpolation": self.interpolation}

    def __str__(self) -> str:
        others = (self.resize, self.interpolation)
        return "-".join([str(self.side), *(word for word in others if word not in ("shortest", "bicubic"))])

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image is resized to, before it is cropped or padded.

        The shortest side is rounded as in torchvision, and the longest side as in open_clip.
        """
        if self.resize == "squash":
            return self.side, self.side
        if self.resize == "longest":
            ratio = max(height, width) / self.side
            return round(height / ratio), round(width / ratio)
        short = min(height, width)
        return self.side * height // short, self.side * width // short
