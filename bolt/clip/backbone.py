"""A frozen CLIP: image tower, text head and preprocessing.

Shape legend: B images, S image side, D joint embedding width, P prompts, C classes, T templates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bolt.clip.preprocess import normalise
from bolt.clip.tower import ImageTower, tower_digest
from bolt.clip.tower_shape import Activation

_PROMPT_BATCH = 256


class Backbone:
    """A CLIP model that is never trained: methods adapt copies of its tower.

    Attributes:
        name: as used in grids and results.
        tower: the frozen image tower, in evaluation mode, no tensor of which requires a gradient.
        logit_scale: the factor of the cosine in a logit, already exponentiated (100 for the original weights).
        image_size: side S of the square images the tower takes.
        embed_dim: width D of the joint embedding.
        mean, std: per channel, of pixels in [0, 1].
    """

    def __init__(
        self,
        name: str,
        tower: ImageTower,
        text: nn.Module,
        tokenizer: Callable[[list[str]], Tensor],
        logit_scale: float,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        self.name = name
        self.tower = tower.requires_grad_(False).eval()
        self.logit_scale = logit_scale
        self.image_size = tower.shape.image_size
        self.embed_dim = tower.shape.embed_dim
        self.mean = tuple(mean)
        self.std = tuple(std)
        self._text = text.requires_grad_(False).eval()
        self._tokenizer = tokenizer

    @cached_property
    def digest(self) -> str:
        """What the image tower is: its tensors and its activation, in sixteen hexadecimal digits."""
        return tower_digest(self.tower)

    @classmethod
    def from_open_clip(cls, model: nn.Module, tokenizer: Callable[[list[str]], Tensor], name: str) -> Backbone:
        """A backbone from an open_clip model, whose image tensors it shares and whose text tower it copies.

        Raises ``bolt.clip.tower_shape.UnsupportedTower`` for an image tower other than a plain vision transformer.
        """
        import open_clip  # seconds to import, and only a model that came from it gets here

        visual = model.get_submodule("visual")
        text = copy.deepcopy(model, memo={id(visual): None})
        mean = getattr(visual, "image_mean", None) or open_clip.OPENAI_DATASET_MEAN
        std = getattr(visual, "image_std", None) or open_clip.OPENAI_DATASET_STD
        logit_scale = float(model.get_parameter("logit_scale").detach().exp())
        return cls(name, ImageTower.from_open_clip(visual), text, tokenizer, logit_scale, mean, std)

    @property
    def activation(self) -> Activation:
        """``gelu`` or ``quick_gelu``; weights trained with the one are silently wrong under the other."""
        return self.tower.shape.activation

    @property
    def device(self) -> torch.device:
        """Where the towers are."""
        return self.tower.class_embedding.device

    def to(self, device: torch.device | str) -> Backbone:
        """Move both towers; returns the backbone itself."""
        self.tower.to(device)
        self._text.to(device)
        return self

    def normalise(self, pixels_B3SS: Tensor) -> Tensor:
        """uint8 pixels (B, 3, S, S) -> float32 tower input on the backbone's device."""
        return normalise(pixels_B3SS, self.mean, self.std, self.device)

    def encode_images(self, pixels_B3SS: Tensor, tower: ImageTower | None = None, batch_size: int = 256) -> Tensor:
        """Raw (not normalised) float32 features (B, D) of uint8 pixels, by the frozen tower or the one given.

        Images go through in batches of ``batch_size``, cut from the start: which images share a batch can change
        the last bits of a feature, so equal calls give equal bits and other batch sizes need not.
        """
        tower = self.tower if tower is None else tower
        features_BD = torch.empty(len(pixels_B3SS), self.embed_dim, device=self.device)
        # The tensor is made outside, so that it can take part in autograd although nothing in here does.
        with torch.inference_mode():
            for start in range(0, len(pixels_B3SS), batch_size):
                rows = slice(start, start + batch_size)
                features_BD[rows] = tower(self.normalise(pixels_B3SS[rows]))
        return features_BD

    def encode_prompts(self, prompts: Sequence[str]) -> Tensor:
        """Raw (not normalised) float32 text embeddings, (P, D)."""
        embeddings_PD = torch.empty(len(prompts), self.embed_dim, device=self.device)
        with torch.inference_mode():
            for start in range(0, len(prompts), _PROMPT_BATCH):
                tokens = self._tokenizer(list(prompts[start : start + _PROMPT_BATCH])).to(self.device)
                embeddings_PD[start : start + _PROMPT_BATCH] = self._text.encode_text(tokens)  # type: ignore[operator]
        return embeddings_PD

    def zero_shot_head(self, class_names: Sequence[str], templates: Sequence[str]) -> Tensor:
        """Unit-norm class embeddings (C, D): every template filled with every class name.

        Raises ``ValueError`` for an empty list or a template without ``{}``.
        """
        if not class_names or not templates:
            raise ValueError("a zero-shot head needs at least one class name and one template")
        for template in templates:
            if "{}" not in template:
                raise ValueError(f"the template {template!r} has no {{}} for the class name")
        prompts = [template.replace("{}", name) for name in class_names for template in templates]
        distinct = {prompt: position for position, prompt in enumerate(dict.fromkeys(prompts))}
        embeddings_PD = self.encode_prompts(list(distinct))
        rows = torch.tensor([distinct[prompt] for prompt in prompts], device=embeddings_PD.device)
        return average_prompts(embeddings_PD[rows].view(len(class_names), len(templates), -1))


def average_prompts(embeddings_CTD: Tensor) -> Tensor:
    """Class embeddings (C, D) from prompt embeddings (C, T, D): normalise, average over templates, normalise."""
    return F.normalize(F.normalize(embeddings_CTD, dim=-1).mean(dim=1), dim=-1)
