"""A frozen CLIP: image tower, text head and preprocessing.

Shape legend: B images, S image side, D joint embedding width, P prompts, C classes, T templates.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bolt.class_words import check_placeholders
from bolt.clip.feature_tower import computes_alike, image_tower_of
from bolt.clip.input_size import InputSize, Interpolation, Resize, check_preprocessing
from bolt.clip.precision import check_precision, plain_torch
from bolt.clip.preprocess import check_pixels, normalise
from bolt.clip.text_tower import TextTower
from bolt.clip.tower import ImageTower, tower_digest
from bolt.clip.tower_shape import Activation, UnsupportedTower
from bolt.protocol import Precision
from bolt.util.ranges import AtLeast1, check_value

_PROMPT_BATCH = 256


class Backbone:
    """A CLIP model that is never trained; methods train copies of its towers.

    The text tower is loaded when prompts are encoded, because most methods need the text head only.

    Attributes:
        name: name of the backbone in grids and results.
        tower: the frozen image tower, in evaluation mode.
        logit_scale: factor of the cosine in a logit, already exponentiated (100 for the original weights).
        input_size: side S of the square input images, in pixels, and how an image is resized to S.
        embed_dim: width D of the joint embedding.
        mean, std: normalisation per channel, for pixels in [0, 1].
    """

    def __init__(
        self,
        name: str,
        tower: ImageTower,
        text: Callable[[], nn.Module],
        tokenizer: Callable[[list[str]], Tensor],
        logit_scale: float,
        mean: Sequence[float],
        std: Sequence[float],
        resize: Resize = "shortest",
        interpolation: Interpolation = "bicubic",
    ) -> None:
        self.name = name
        self.tower = tower.requires_grad_(False).eval()
        self.logit_scale = logit_scale
        self.input_size = InputSize(tower.shape.image_size, resize, interpolation)
        self.embed_dim = tower.shape.embed_dim
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        check_preprocessing({"resize_mode": resize, "interpolation": interpolation, "mean": self.mean, "std": self.std})
        self._text = text
        self._tokenizer = tokenizer
        self._at: dict[Precision, Backbone] = {}

    @cached_property
    def digest(self) -> str:
        """Digest of the image tower; see :func:`bolt.clip.tower.tower_digest`."""
        return tower_digest(self.tower)

    @property
    def image_size(self) -> int:
        """Side S of the square input images, in pixels."""
        return self.input_size.side

    @classmethod
    def from_open_clip(
        cls,
        model: nn.Module,
        tokenizer: Callable[[list[str]], Tensor],
        name: str,
        *,
        given_away: bool = False,
        load_again: Callable[[], nn.Module] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        resize: Resize | None = None,
        interpolation: Interpolation | None = None,
    ) -> Backbone:
        """Convert an open_clip model. The backbone usually gets a copy of it, so you may train the model afterwards.

        Args:
            given_away: whether nothing is copied, because only the backbone uses the model from now on.
            load_again: loads the same model again. If given, nothing is copied, and no text side is kept. Instead the
                model is loaded whenever prompts are encoded, and freed afterwards. That saves two fifths of the memory
                of ViT-B/32, and costs one or two seconds.
            mean, std: normalisation per channel; by default that of the model.
            resize, interpolation: see :class:`bolt.clip.input_size.InputSize`; by default those of the model.

        Raises ``bolt.clip.tower_shape.UnsupportedTower``, a ``ValueError``, if ``model`` is not of open_clip, if the
        image tower's input is not square or its weights are not float32, if more of the model was changed than its
        weights (hooks, ``forward``), or if ``logit_scale`` is not the logarithm of a factor from 1 to 1000.
        """
        import open_clip  # takes seconds to import

        if not all(hasattr(model, part) for part in ("get_submodule", "visual", "logit_scale")):
            raise UnsupportedTower(
                f"{name} is a {type(model).__name__}, no model of open_clip: create_model_and_transforms returns it "
                "first, DataParallel has it as .module; for a model of transformers, give bolt.load_backbone its files"
            )
        if load_again is None and not given_away:
            model = copy.deepcopy(model)
        visual = model.get_submodule("visual")
        if other := {str(weight.dtype) for weight in visual.parameters()} - {"torch.float32"}:
            raise UnsupportedTower(f"{name} has {', '.join(sorted(other))} weights; convert them first: model.float()")
        if mean is None:
            mean = getattr(visual, "image_mean", None) or open_clip.OPENAI_DATASET_MEAN
        if std is None:
            std = getattr(visual, "image_std", None) or open_clip.OPENAI_DATASET_STD
        stored = model.get_parameter("logit_scale").item()
        if not 0 <= stored <= math.log(1000) + 1e-6:  # the logarithm of 1000 is a little more in float32
            raise UnsupportedTower(
                f"the logit_scale of {name} is {stored:g}, but it must be the natural logarithm of a factor from 1 to "
                "1000, such as 4.605 for the factor 100"
            )
        logit_scale = float(model.get_parameter("logit_scale").detach().exp())
        how = getattr(visual, "preprocess_cfg", {})
        resize = resize or how.get("resize_mode", "shortest")
        interpolation = interpolation or how.get("interpolation", "bicubic")
        tower = image_tower_of(model)
        # The other towers run the module that they were given.
        if type(tower) is ImageTower and load_again is None and not given_away and not computes_alike(tower, visual):
            raise UnsupportedTower(
                f"the image tower of {name} does not compute what its weights and sizes say: it may have hooks, "
                "a changed forward, or a layer that differs from the others"
            )
        if load_again is None:
            model.visual = None  # type: ignore[assignment]
            load_again = partial(cast, nn.Module, model)  # a lambda could not be pickled
        return cls(name, tower, load_again, tokenizer, logit_scale, mean, std, resize, interpolation)

    @property
    def activation(self) -> Activation:
        """``gelu`` or ``quick_gelu``. A wrong activation gives wrong features, but raises no error."""
        return self.tower.shape.activation

    @property
    def precision(self) -> Precision | None:
        """Number format of the matrix products, see :mod:`bolt.clip.precision`; ``None`` is the device's default."""
        return self.tower.precision

    def at(self, precision: Precision | None) -> Backbone:
        """Return the same backbone in another number format, with shared tensors. ``None`` changes nothing.

        Raises :class:`bolt.clip.precision.UnsupportedPrecision` if the device cannot compute in this format.
        """
        check_precision(precision, self.device)
        if precision is None or precision == self.precision:
            return self
        if precision not in self._at:
            other = copy.copy(self)
            other._at = {}
            other.__dict__.pop("text_tower", None)
            other.tower = self.tower.copy()
            other.tower.precision = precision
            self._at[precision] = other
        return self._at[precision]

    @property
    def device(self) -> torch.device:
        """Device of the image tower, to which the text side is moved before use."""
        return next(self.tower.parameters()).device

    def to(self, device: torch.device | str) -> Backbone:
        """Move the image tower to a device, and the text side before its next use; return the backbone itself."""
        self.tower.to(torch.device(device))  # a number format would be taken, too
        self.__dict__.pop("text_tower", None)
        self._at.clear()
        return self

    @cached_property
    def text_tower(self) -> TextTower:
        """The frozen text tower, through which methods can differentiate. It stays in memory after the first use.

        Raises ``bolt.clip.tower_shape.UnsupportedTower`` if it is not open_clip's plain causal transformer.
        """
        tower = TextTower.from_open_clip(self._text().to(self.device))
        tower.precision = self.precision
        return tower

    def tokenize(self, prompts: Iterable[str]) -> Tensor:
        """Return prompts as token numbers, (P, context length), on the backbone's device.

        In CLIP's vocabulary the end token has the largest number, so ``argmax`` finds its position.
        """
        return self._tokenizer(_texts(prompts)).to(self.device)

    def cut_off(self, prompts: Iterable[str]) -> list[str]:
        """Return the prompts whose last letter is beyond the context length, so that it has no effect."""
        length = self.tokenize([""]).shape[1]
        long = [prompt for prompt in _texts(prompts) if len(prompt.encode()) > length - 2]  # a token has a byte or more
        if not long:
            return []
        shorter = [re.sub(r"[\W_]+$", "", prompt)[:-1] for prompt in long]  # tokenizers may drop final punctuation
        given_PL, shorter_PL, longer_PL = map(self.tokenize, (long, shorter, [f"{prompt} a" for prompt in long]))
        cut_P = ((given_PL == shorter_PL) & (given_PL == longer_PL)).all(dim=1)
        return [prompt for prompt, cut in zip(long, cut_P.tolist(), strict=True) if cut]

    def normalise(self, pixels_B3SS: Tensor) -> Tensor:
        """Convert uint8 pixels (B, 3, S, S) to float32 tower input on the backbone's device.

        Raises ``TypeError`` for anything else.
        """
        check_pixels(pixels_B3SS, self.image_size)
        return normalise(pixels_B3SS, self.mean, self.std, self.device)

    @plain_torch()
    def encode_images(self, pixels_B3SS: Tensor, tower: ImageTower | None = None, batch_size: int = 256) -> Tensor:
        """Encode uint8 pixels (B, 3, S, S) as raw (not normalised) float32 features (B, D).

        The images are encoded in batches of ``batch_size``. The last bits of a feature can depend on the other images
        in the batch, so only calls with the same images and batch size give identical bits.

        Args:
            tower: the image tower to use; by default the frozen tower.
        """
        check_value("batch_size", batch_size, AtLeast1)
        tower = self.tower if tower is None else tower
        features_BD = torch.empty(len(pixels_B3SS), self.embed_dim, device=self.device)
        # The features are allocated outside of inference mode, because autograd cannot use tensors made inside it.
        with torch.inference_mode():
            for start in range(0, len(pixels_B3SS), batch_size):
                rows = slice(start, start + batch_size)
                features_BD[rows] = tower(self.normalise(pixels_B3SS[rows]))
        return features_BD

    @plain_torch()
    def encode_prompts(self, prompts: Iterable[str]) -> Tensor:
        """Encode prompts as raw (not normalised) float32 text embeddings, (P, D)."""
        prompts = _texts(prompts)
        embeddings_PD = torch.empty(len(prompts), self.embed_dim, device=self.device)
        text = self._text().to(self.device).eval()
        with torch.inference_mode():
            for start in range(0, len(prompts), _PROMPT_BATCH):
                tokens = self.tokenize(prompts[start : start + _PROMPT_BATCH])
                embeddings_PD[start : start + _PROMPT_BATCH] = text.encode_text(tokens)  # type: ignore[operator]
        return embeddings_PD

    def zero_shot_head(
        self, class_names: Iterable[str], templates: Iterable[str] | Mapping[str, Iterable[str]]
    ) -> Tensor:
        """Return unit-norm class embeddings (C, D): the mean text embedding of a class name in all templates.

        ``templates`` may also be a mapping from a class name to sentences that describe the class (CuPL,
        https://arxiv.org/abs/2209.03320). The class embedding is then the mean over these sentences. In templates and
        sentences, the class name replaces ``{}``.

        Raises ``ValueError`` if a list is empty, a template has no ``{}``, or a class has no sentences, and the errors
        of :func:`prompt_lists`.
        """
        templates, class_names = prompt_lists(templates), _texts(class_names, "class names")
        if isinstance(templates, Mapping):
            if missing := [name for name in class_names if not templates.get(name)]:
                raise ValueError(f"no sentences are given for the class {missing[0]!r}")
            heads = [
                self.encode_prompts([sentence.replace("{}", name) for sentence in templates[name]])
                for name in class_names
            ]
            return torch.cat([average_prompts(embeddings_TD[None]) for embeddings_TD in heads])
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


def prompt_lists(prompts: Iterable[str] | Mapping[str, Iterable[str]]) -> list[str] | dict[str, list[str]]:
    """Return templates, or the sentences of each class, as lists. A template may be a function that inserts a name.

    Raises ``ValueError`` for a single text, for a set (it has no order), for a list with an item that is no text, for
    another placeholder than ``{}``, and for a function that does more, such as to choose the article.
    """
    if isinstance(prompts, Mapping):
        by_class = {str(name): _texts(each, f"the prompts of {name!r}") for name, each in prompts.items()}
        return {name: check_placeholders(each) for name, each in by_class.items()}
    if isinstance(prompts, list | tuple):  # open_clip's templates are functions
        prompts = [
            prompt("{}") if callable(prompt) and prompt("{}").replace("{}", "owl") == prompt("owl") else prompt
            for prompt in prompts
        ]
    return check_placeholders(_texts(prompts))


def filled(class_names: Sequence[str], prompts: Sequence[str] | Mapping[str, Sequence[str]]) -> list[str]:
    """Return each distinct text of a text head once: the prompts, with each class name in place of ``{}``."""
    of = prompts if isinstance(prompts, Mapping) else dict.fromkeys(class_names, prompts)
    return [*dict.fromkeys(text.replace("{}", name) for name in class_names for text in of[name])]


def _texts(given: Iterable[str], what: str = "prompts") -> list[str]:
    listed = isinstance(given, Iterable) and not isinstance(given, str | set | frozenset | Mapping)
    found = [*given] if listed else []
    wrong = [each for each in found if not isinstance(each, str)] if listed else [given]
    if wrong:
        example = f", such as [{given!r}]" if isinstance(given, str) else ""
        raise ValueError(f"{what} must be texts in a list{example}, not {wrong[0]!r}")
    return found


def average_prompts(embeddings_CTD: Tensor) -> Tensor:
    """Average prompt embeddings (C, T, D) to class embeddings (C, D): normalise, mean over templates, normalise."""
    return F.normalize(F.normalize(embeddings_CTD, dim=-1).mean(dim=1), dim=-1)
