"""Text in training: CoOp's learned context, a trained text tower, and learned tokens in both towers (deep prompts).

Deep prompts are those of MaPLe and PromptSRC. In the text tower the tokens follow the start token and replace the first
words of the prompt. In the image tower the tokens follow the patches and have no position embedding; the layer norm
before the blocks is applied to them. Each of the first ``depth`` blocks has its own tokens, which replace the previous
block's outputs at the same positions.

Shape legend: C classes, L tokens of the longest prompt, K context tokens or tokens of a block, J blocks with tokens,
W width of the text tower, D joint embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.clip.text_tower import TextTower
from bolt.clip.tower import ImageTower
from bolt.methods.common.coop_training import CoopTrainingSettings
from bolt.seeds import torch_generator
from bolt.task.classifiers import CosineClassifier
from bolt.task.task import Task
from bolt.training.adaptation import Trainable
from bolt.util.ranges import AtLeast1

ClassPosition = Literal["end", "middle", "front"]
"""Position of the class name: at the ``end``, after the context; in the ``middle`` of the context; or in ``front``."""


class LearnedPrompts:
    """The prompts "start, context, class name, full stop, end" with a context of embeddings instead of words.

    Args:
        backbone: the CLIP with the tokeniser and the text tower.
        class_names: the names; ``_`` counts as a space.
        context_tokens: how many embeddings the context has.
        position: position of the class name relative to the context.

    Raises:
        ValueError: if a prompt has more tokens than the text tower takes. The message names the class.
        bolt.clip.tower_shape.UnsupportedTower: for a text tower that is not CLIP's.
    """

    def __init__(
        self, backbone: Backbone, class_names: Sequence[str], context_tokens: int, position: ClassPosition = "end"
    ) -> None:
        self._tower = tower = backbone.text_tower
        names = [name.replace("_", " ") for name in class_names]
        tokens_CL = backbone.tokenize([f"{name}." for name in names])
        self._ends_C = tokens_CL.argmax(dim=-1) + context_tokens
        length, limit = int(self._ends_C.max()) + 1, tower.shape.context_length
        if length > limit:
            longest = names[int(self._ends_C.argmax())]
            raise ValueError(
                f"the prompt of class {longest!r} has {length} tokens ({context_tokens} of them are context), but the "
                f"text tower takes at most {limit}; take a shorter context or class name"
            )
        words_CLW = tower.embed(tokens_CL[:, : length - context_tokens])
        self._start_CLW, self._rest_CLW = words_CLW[:, :1], words_CLW[:, 1:]
        name_lengths = (backbone.tokenize(names).argmax(dim=-1) - 1).tolist()
        orders = [_token_order(name_length, context_tokens, length, position) for name_length in name_lengths]
        self._order_CL = torch.tensor(orders, device=tokens_CL.device)

    def embeddings(self, context_KW: Tensor) -> Tensor:
        """Return the token embeddings of all prompts, (C, L, W). The context is (K, W), or (C, K, W): one per class."""
        context_CKW = context_KW.expand(len(self._ends_C), -1, -1)
        prompts_CLW = torch.cat([self._start_CLW, context_CKW, self._rest_CLW], dim=1)
        return prompts_CLW.gather(1, self._order_CL[..., None].expand_as(prompts_CLW))

    def encode(self, context_KW: Tensor) -> Tensor:
        """Return the unit text embedding of every class, (C, D), differentiable in the context."""
        return F.normalize(self._tower(self.embeddings(context_KW), self._ends_C), dim=-1)


def _token_order(name_length: int, context_tokens: int, length: int, position: ClassPosition) -> list[int]:
    """Return the order of a prompt's tokens, as indices into "start, context, class name, full stop, end, padding"."""
    before = {"end": context_tokens, "middle": context_tokens // 2, "front": 0}[position]
    name = range(1 + context_tokens, 1 + context_tokens + name_length)
    context, rest = range(1, 1 + context_tokens), range(name.stop, length)
    return [0, *context[:before], *name, *context[before:], *rest]


def word_embeddings(backbone: Backbone, words: str) -> Tensor:
    """Return the token embeddings (K, W) of ``words``, without the start and the end token.

    Raises ``ValueError`` for a text without words: no context would be trained.
    """
    tokens_L = backbone.tokenize([words])[0]
    if (end := int(tokens_L.argmax())) < 2:
        raise ValueError(f"initial_words is {words!r}; it takes one or more words")
    return backbone.text_tower.embed(tokens_L[1:end])


def encode_tokens(tower: TextTower, tokens_CL: Tensor) -> Tensor:
    """Return the unit text embeddings of all classes, (C, D), from the token numbers of one prompt per class."""
    return F.normalize(tower(tower.embed(tokens_CL), tokens_CL.argmax(dim=-1)), dim=-1)


class TrainedText:
    """A copy of the text tower, and the class names of a task.

    Args:
        task: the task, with class names.
        tower: a copy of the task's text tower. Its tensors that require a gradient are trained.
        template: the prompt, with ``{}`` for the class name; by default the task's first template.

    Attributes:
        tower: the copy.
        parameters: the tensors that are trained.
    """

    def __init__(self, task: Task, tower: TextTower, template: str | None = None) -> None:
        self._task, self.tower = task, tower
        self._template = task.class_text.templates[0] if template is None else template
        self.parameters = [tensor for tensor in tower.parameters() if tensor.requires_grad]
        self._tokens_CL = self._tokenize(task.class_text.class_names)

    def head(self) -> Tensor:
        """Return the unit text embeddings of the task's classes, (C, D), differentiable in ``parameters``."""
        return encode_tokens(self.tower, self._tokens_CL)

    @torch.no_grad()
    def embed_classes(self, class_names: Sequence[str]) -> Tensor:
        """Return the unit text embeddings (C, D) of class names with the current parameters, without dropout."""
        self.tower.eval()
        return encode_tokens(self.tower, self._tokenize(class_names))

    def classifier(self) -> CosineClassifier:
        """Return the classifier of the task's classes with the current parameters."""
        return self.classifier_of(self.embed_classes(self._task.class_text.class_names))

    def classify(self, features_BD: Tensor) -> Tensor:
        """Return the logits (B, C) of raw features, differentiable in ``parameters``."""
        return self.classifier_of(self.head())(features_BD)

    def joined(self, image: Trainable) -> Trainable:
        """Return a model that trains an image tower and this text tower. The text tower gives the class vectors."""
        return replace(
            image,
            parameters=[*image.parameters, *self.parameters],
            classify=self.classify,
            classifier=self.classifier,
            embed_classes=self.embed_classes,
        )

    def classifier_of(self, head_CD: Tensor) -> CosineClassifier:
        """Return the classifier of these unit class embeddings."""
        return CosineClassifier(head_CD, self._task.backbone.logit_scale)

    def _tokenize(self, class_names: Sequence[str]) -> Tensor:
        tokens_CL = self._task.backbone.tokenize([self._template.replace("{}", name) for name in class_names])
        return tokens_CL[:, : int(tokens_CL.argmax(dim=-1).max()) + 1]  # up to the last end token


@dataclass(frozen=True)
class DeepPromptSettings(CoopTrainingSettings):
    """The tokens and the training recipe.

    Attributes:
        depth: how many blocks of each tower have tokens. If one of the towers has fewer blocks, its number of blocks
            is used for both towers.
        tokens: number of tokens of a block, the same in both towers.
        initial_words: words before the class name. The text tokens of the first block start as the embeddings of these
            words.
        epochs, batch_size, learning_rate, weight_decay: the settings of SGD with momentum. The weight decay is the
            factor of an L2 penalty.
    """

    depth: AtLeast1 = 9
    tokens: AtLeast1 = 4
    initial_words: str = "a photo of a"
    epochs: int = 20
    batch_size: int = 4
    learning_rate: float = 2.5e-3


def drawn_tokens(task: Task, *shape: int, purpose: tuple[str, str]) -> Tensor:
    """Draw tokens from N(0, 0.02^2). Their purpose and the task's dataset and seed fix the draw."""
    generator = torch_generator(*purpose, task.dataset, task.seed)
    return 0.02 * torch.randn(shape, generator=generator).to(task.backbone.device)


def prompted_towers(task: Task, settings: DeepPromptSettings) -> tuple[ImageTower, TrainedText]:
    """Return the image tower and the text tower, both with tokens to train.

    The tokens of the text tower's first block start as the embeddings of words. All other tokens are drawn at random.

    Raises ``ValueError`` if ``initial_words`` has fewer tokens than ``tokens``, and ``UnsupportedTower`` for a tower
    that is not CLIP's.
    """
    image, text = task.backbone.tower, task.backbone.text_tower
    depth = min(settings.depth, image.shape.layers, text.shape.layers)
    drawn_JKV = drawn_tokens(task, depth, settings.tokens, image.shape.width, purpose=("deep prompts", "image"))
    tower = image.with_prompts(drawn_JKV)
    first_KW = word_embeddings(task.backbone, settings.initial_words)[: settings.tokens]
    if len(first_KW) < settings.tokens:
        raise ValueError(f"initial_words has {len(first_KW)} tokens, but tokens asks for {settings.tokens}")
    drawn_JKW = drawn_tokens(task, depth - 1, *first_KW.shape, purpose=("deep prompts", "text")).to(first_KW)
    prompted = text.with_prompts(torch.cat([first_KW[None], drawn_JKW]))
    return tower, TrainedText(task, prompted, f"{settings.initial_words} {{}}.")
