"""Image towers of open_clip other than CLIP's vision transformer; they keep open_clip's modules and tensor names.

A plain vision transformer of timm becomes a :class:`TimmTower`, whose weight matrices methods can train by name. Any
other tower becomes a :class:`FeatureTower`, which stays frozen.

Shape legend: B images, S image side, D embedding width.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from bolt.clip.precision import forward_pass
from bolt.clip.tensor_names import matrix_names
from bolt.clip.tower import ImageTower, Tower
from bolt.clip.tower_shape import TowerShape, UnsupportedTower
from bolt.seeds import torch_generator


class FeatureTower(ImageTower):
    """A frozen module of open_clip, such as a ResNet or a ConvNeXt: normalised images (B, 3, S, S) -> features (B, D).

    Only methods that need no more than frozen features can use this tower. Its shape has no layers, so asking for the
    names of its weight matrices raises ``UnsupportedTower``.
    """

    def __init__(self, visual: nn.Module, shape: TowerShape) -> None:
        Tower.__init__(self, shape)
        self.visual = visual
        self.requires_grad_(False).eval()

    def forward(self, images_B3SS: Tensor) -> Tensor:
        """Return raw (not normalised) float32 features, (B, D)."""
        with forward_pass(self.precision, images_B3SS.device):
            return _features(self.visual, images_B3SS).float()

    def state_dict_open_clip(self) -> dict[str, Tensor]:
        """Return every tensor by its name in open_clip's *visual* tower, detached but not copied."""
        return {name: tensor.detach() for name, tensor in self.visual.state_dict().items()}

    def copy(self, trainable: Iterable[str] = ()) -> Self:
        """Return a copy that shares all tensors. Raises ``UnsupportedTower`` if ``trainable`` names a tensor."""
        if list(trainable):
            raise UnsupportedTower(f"the tensors of a {type(self.visual).__name__} cannot be trained")
        return copy.copy(self)

    def with_prompts(self, prompts_JKW: Tensor) -> Self:
        raise UnsupportedTower(f"a {type(self.visual).__name__} cannot take learned tokens")


class TimmTower(FeatureTower):
    """A plain vision transformer of timm in open_clip (SigLIP, PE-Core, EVA-02), whose matrices methods can train.

    Tensors have the names of open_clip's *visual* tower. Every matrix is stored as (out, in), as in its module.
    """

    block_names: ClassVar[str] = "trunk.blocks"

    def __init__(self, visual: nn.Module, shape: TowerShape) -> None:
        trunk: Any = visual.get_submodule("trunk")
        first: Any = trunk.blocks[0]
        hidden = next(part for name, part in first.mlp.named_modules() if name in ("fc1", "fc1_g"))
        shape = replace(
            shape,
            patch_size=trunk.patch_embed.patch_size[0],
            width=trunk.embed_dim,
            layers=len(trunk.blocks),
            heads=first.attn.num_heads,
            mlp_width=hidden.out_features,
            epsilon=first.norm1.eps,
        )
        super().__init__(visual, shape)

    def tensor_paths(self) -> dict[str, str]:
        return {name: f"visual.{name}" for name, _ in self.visual.named_parameters()}

    def matrix_paths(self) -> dict[str, str]:
        own = dict(self.visual.named_parameters())
        return {name: f"visual.{name.removesuffix('.weight')}" for name in matrix_names(own)}

    def copy(self, trainable: Iterable[str] = ()) -> Self:
        return ImageTower.copy(self, trainable)


def image_tower_of(model: nn.Module) -> ImageTower:
    """Return the frozen image tower of an open_clip model, in the class that fits its architecture.

    A tower other than CLIP's own transformer gets the activation ``quick_gelu`` in its shape if any module of the whole
    model is a QuickGELU. The text side counts too, because an image tower such as a ResNet has no GELU.

    Raises ``UnsupportedTower`` if the tower's input is not square, or if it gives several vectors for an image.
    """
    import open_clip.transformer as open_clip_transformer  # takes seconds to import

    visual: Any = model.get_submodule("visual").eval()
    try:
        return ImageTower.from_open_clip(visual)
    except UnsupportedTower:
        quick = any(isinstance(module, open_clip_transformer.QuickGELU) for module in model.modules())
    size = visual.image_size
    if len(sides := {*size} if isinstance(size, tuple | list) else {size}) != 1:
        raise UnsupportedTower(f"the images of this tower are not square: {size}")
    side = int(sides.pop())
    embed_dim, computing = _encode_black(visual, side)
    shape = TowerShape(side, 0, 0, 0, 0, 0, embed_dim, "quick_gelu" if quick else "gelu")
    return TimmTower(visual, shape) if _has_named_matrices(visual, computing) else FeatureTower(visual, shape)


def computes_alike(tower: ImageTower, visual: nn.Module) -> bool:
    """Return whether a tower gives about the features of the module that it was made of, for one random image.

    NaN and infinite features are not compared; other checks refuse them.
    """
    side, device = tower.shape.image_size, next(tower.parameters()).device
    image = torch.randn(1, 3, side, side, generator=torch_generator("computes_alike"), device="cpu").to(device)
    with torch.inference_mode():
        ours, theirs = tower(image), _features(visual, image)
    return not theirs.isfinite().all() or bool((ours - theirs).norm() <= 1e-2 * theirs.norm())


def _features(visual: nn.Module, images_B3SS: Tensor) -> Tensor:
    made = visual(images_B3SS)
    return cast(Tensor, made[0] if isinstance(made, tuple) else made)  # CoCa also returns its tokens


def _encode_black(visual: nn.Module, side: int) -> tuple[int, set[nn.Module]]:
    """Encode a black image; return the embedding width, and the linear modules that the forward pass called."""
    computing: set[nn.Module] = set()
    linear = [part for part in visual.modules() if isinstance(part, nn.Linear)]
    hooks = [part.register_forward_hook(lambda part, *_: computing.add(part)) for part in linear]
    with torch.inference_mode():
        image = torch.zeros(1, 3, side, side, device=next(visual.parameters()).device)
        features = _features(visual, image)
    for hook in hooks:
        hook.remove()
    if features.ndim != 2:
        raise UnsupportedTower(
            f"this tower does not give one vector for an image: its features are {[*features.shape]}"
        )
    return features.shape[1], computing


def _has_named_matrices(visual: nn.Module, computing: set[nn.Module]) -> bool:
    """Return whether an image tower is a plain vision transformer of timm whose matrices can be trained by name.

    In such a tower, every matrix is the weight of a linear module of a known kind, and the forward pass calls this
    module. If the forward pass only read the weight, an adapter in place of the module would have no effect. The tower
    must also have neither dropout nor buffers, such as the statistics of batches.
    """
    trunk: Any = getattr(visual, "trunk", None)
    patches = getattr(getattr(trunk, "patch_embed", None), "patch_size", (0, 1))
    if not isinstance(getattr(trunk, "blocks", None), nn.ModuleList | nn.Sequential) or len({*patches}) != 1:
        return False
    own = dict(visual.named_parameters())
    linear = {f"{name}.weight": part for name, part in visual.named_modules() if isinstance(part, nn.Linear)}
    matrices = {name for name, tensor in own.items() if tensor.ndim == 2}
    draws = any(getattr(part, name, 0) for part in visual.modules() for name in ("p", "drop_prob", "prob"))
    named = matrices == linear.keys() == {*matrix_names(own)} and computing == {*linear.values()}
    return named and not draws and own.keys() == visual.state_dict().keys()
