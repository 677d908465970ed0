"""CoOp: learns the context words of the prompt (Zhou et al., IJCV 2022, arXiv:2109.01134).

The prompt of class c is the token embeddings ``[V_1] ... [V_K] [name of c] .``. Both towers are frozen, and the context
V (K, W) is trained through the text tower by cross-entropy::

    t_c = text tower(V, name of c),    logits_c = scale cos(f, t_c)

The defaults are the official ones. The context has 16 tokens, drawn from N(0, 0.02^2). It comes before the class name,
and all classes share it. The optimiser is SGD with rate 2e-3, momentum 0.9 and an L2 penalty of 5e-4 inside the
gradient. Batches have 32 images, and the last epoch is kept. The learning rate changes per epoch, and the first epoch
runs at 1e-5. Training takes 50 epochs with one image per class, 100 with two to four images and 200 with more. For
ImageNet, the preset ``imagenet`` takes 50. The preset ``photo`` starts at the four words "a photo of a". No setting is
chosen on labelled images outside the support.

The result is a head of class vectors, so a saved model needs no text tower. What differs from the official code:

- The epochs cycle through ``views`` augmented views, whose frozen features are cached.
- The last batch of an epoch is used even if it is smaller than the others. The official code drops it.
- Numbers are float32. The official default is half precision, which near 0.02 rounds a step to multiples of 1.5e-5.

Shape legend: B batch, C classes, K context tokens, W width of the text tower, D joint embedding width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Idle, Method, TowerPasses, registering
from bolt.methods.common.coop_training import CoopTrainingSettings, coop_options
from bolt.methods.common.frozen_features import train_on_features
from bolt.methods.common.prompts import ClassPosition, LearnedPrompts, drawn_tokens, word_embeddings
from bolt.task.classifiers import CosineClassifier, NoNewClasses
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast1

EPOCHS = ((1, 50), (4, 100), (math.inf, 200))
"""Pairs (largest number of images per class, default number of epochs)."""


@dataclass(frozen=True)
class CoOpSettings(CoopTrainingSettings):
    """The context and the training recipe; the defaults are the official ones.

    Attributes:
        context_tokens: length of the context, K.
        initial_words: words whose embeddings the context starts from. The number of their tokens then replaces
            ``context_tokens``.
        class_specific: whether every class has a context of its own.
        class_position: position of the class name in the prompt: ``end``, ``middle`` or ``front``.
        epochs: by default 50 if no class has more than one image, 100 if none has more than four, else 200.
        batch_size, learning_rate, weight_decay: hyperparameters of SGD with momentum. The weight decay is an L2
            penalty.
        views: augmented views that the epochs cycle through.
    """

    context_tokens: AtLeast1 = 16
    initial_words: str = ""
    class_specific: bool = False
    class_position: ClassPosition = "end"
    views: AtLeast1 = 20


def initial_context(task: Task, settings: CoOpSettings) -> Tensor:
    """Return the initial context (K, W), or (C, K, W) if class-specific: random numbers or embeddings of words."""
    backbone, classes = task.backbone, len(task.class_text.class_names)
    if settings.initial_words:
        context_KW = word_embeddings(backbone, settings.initial_words)
        return context_KW.expand(classes, -1, -1).clone() if settings.class_specific else context_KW.clone()
    shape = (classes,) * settings.class_specific + (settings.context_tokens, backbone.text_tower.shape.width)
    return drawn_tokens(task, *shape, purpose=("coop", "context"))


def _tower_passes(support_size: int, settings: CoOpSettings) -> TowerPasses:
    """Return an upper bound of the tower passes: if ``epochs`` is not set, the largest default of 200 is assumed."""
    return TowerPasses(text_training=(settings.epochs or EPOCHS[-1][1]) * math.ceil(support_size / settings.batch_size))


register_learned_context = registering(
    Method,
    names_new_classes=True,
    trains_text=lambda settings: True,
    tower_passes=_tower_passes,
    training_forwards=2.0,
    # ``context_tokens`` may state the number of the initial words, as official configurations do.
    idle=(
        Idle(
            ("context_tokens",),
            {"initial_words": ""},
            agrees=lambda values: bool(values["context_tokens"] == len(values["initial_words"].split())),
        ),
    ),
)
"""Registers a method that learns a context. The fields above are the defaults of such methods."""


@register_learned_context(
    title="CoOp",
    palette=18,
    summary="learns the context words of the prompt",
    paper="https://arxiv.org/abs/2109.01134",
    presets={"imagenet": {"epochs": 50}, "photo": {"initial_words": "a photo of a"}},
    support_feature_views=lambda settings: min(settings.views, settings.epochs or EPOCHS[0][1]),
)
def adapt(task: Task, settings: CoOpSettings) -> Adapted:
    """Train the context on the frozen features of the support."""
    return learn_context(task, settings)


def learn_context(task: Task, settings: CoOpSettings, distance_weight: float = 0.0) -> Adapted:
    """Train the context with KgCoOp's penalty for the distance to the text head, ``distance_weight (1 - mean cos)``."""
    backbone = task.backbone
    context_KW = initial_context(task, settings).requires_grad_()
    prompts = LearnedPrompts(backbone, task.class_text.class_names, context_KW.shape[-2], settings.class_position)
    recipe = settings.recipe(settings.epochs_of(task.support.labels_N, EPOCHS))
    latest = context_KW.new_empty(0)

    def classifier() -> CosineClassifier:
        nonlocal latest
        latest = prompts.encode(context_KW)
        return CosineClassifier(latest, backbone.logit_scale)

    def distance() -> Tensor:
        return distance_weight * (1 - F.cosine_similarity(latest, task.head_CD.to(latest), dim=-1).mean())

    @torch.no_grad()
    def embed_classes(class_names: Sequence[str]) -> Tensor:
        if settings.class_specific:
            raise NoNewClasses("with class_specific, only the classes that were trained on have a learned context")
        more = LearnedPrompts(backbone, class_names, context_KW.shape[-2], settings.class_position)
        return more.encode(context_KW)

    how = coop_options(recipe) | {"penalty": distance if distance_weight else None, "precision": backbone.precision}
    finish = partial(Adapted, embed_classes=embed_classes)
    return train_on_features(task, [context_KW], classifier, recipe, finish=finish, views=settings.views, **how)
