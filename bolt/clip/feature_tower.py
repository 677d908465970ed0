"""Any image tower of open_clip as it is, frozen. Its weight matrices have no names by which methods could train them.

Shape legend: B images, S image side, D embedding width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from bolt.clip.precision import forward_pass
from bolt.clip.tower import ImageTower
from bolt.clip.tower_shape import Activation, TowerShape, UnsupportedTower
from bolt.protocol import Precision


class FeatureTower(ImageTower):
    """open_clip's own module, of a ResNet, a ConvNeXt, SigLIP and so on: normalised images (B, 3, S, S) -> (B, D).

    Methods on frozen features run on it. Its shape has no layers, and whatever asks for its matrices by name raises
    ``UnsupportedTower``.

    Raises ``UnsupportedTower`` if the images that the tower takes are not square.
    """

    def __init__(self, visual: nn.Module, activation: Activation) -> None:
        nn.Module.__init__(self)
        size: Any = visual.image_size
        sides = {*size} if isinstance(size, tuple | list) else {size}
        if len(sides) != 1:
            raise UnsupportedTower(f"the images of this tower are not square: {size}")
        self.visual = visual
        self.precision: Precision | None = None
        self.requires_grad_(False).eval()
        side, device = int(sides.pop()), next(visual.parameters()).device
        with torch.inference_mode():
            embed_dim = self._features(torch.zeros(1, 3, side, side, device=device)).shape[1]
        self.shape = TowerShape(side, 0, 0, 0, 0, 0, embed_dim, activation)

    def forward(self, images_B3SS: Tensor) -> Tensor:
        """Return raw (not normalised) float32 features, (B, D)."""
        with forward_pass(self.precision, images_B3SS.device):
            return self._features(images_B3SS).float()

    def _features(self, images_B3SS: Tensor) -> Tensor:
        made = self.visual(images_B3SS)
        return cast(Tensor, made[0] if isinstance(made, tuple) else made)  # CoCa returns its tokens beside them

    def state_dict_open_clip(self) -> dict[str, Tensor]:
        """Return every tensor by its name in open_clip's *visual* tower, detached and shared."""
        return {name: tensor.detach() for name, tensor in self.visual.state_dict().items()}

    def copy(self, trainable: Iterable[str] = ()) -> ImageTower:
        """Return a tower that shares all tensors. Raises ``UnsupportedTower`` if some are to be trainable."""
        if list(trainable):
            raise UnsupportedTower(f"the tensors of a {type(self.visual).__name__} cannot be trained")
        return copy.copy(self)


def image_tower_of(model: nn.Module) -> ImageTower:
    """Return the frozen image tower of an open_clip model: with named matrices if it is a plain vision transformer.

    The activation of another tower is that of the model's text side: a ResNet has none that could be QuickGELU.

    Raises ``UnsupportedTower`` if the images that the tower takes are not square.
    """
    import open_clip.transformer as open_clip_transformer  # takes seconds to import

    visual = model.get_submodule("visual")
    try:
        return ImageTower.from_open_clip(visual)
    except UnsupportedTower:
        quick = any(isinstance(module, open_clip_transformer.QuickGELU) for module in model.modules())
        return FeatureTower(visual, "quick_gelu" if quick else "gelu")
