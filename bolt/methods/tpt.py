"""TPT: learns the context words for one image, so that its most certain views agree (Shu et al., NeurIPS 2022).

Paper: arXiv:2209.07511. The context starts from the words "a photo of a" for every test image. Of 64 views of the
image, the 10 per cent of lowest entropy are kept, and one AdamW step of rate 5e-3 lowers the entropy of their mean
probability. The image is then classified in its un-augmented view, and the context is thrown away. The first step of
AdamW moves every number by the rate, so only the signs of the gradient matter. What differs from the official code:

- The views are crops for every dataset. The official code has crops only for ImageNet and its variants.
- At least one view is kept.

Shape legend: N images, V views, C classes, K context tokens, W width of the text tower, D joint embedding width.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.methods.base import TowerPasses, register
from bolt.methods.common.frozen_features import entropies, unit_test_features
from bolt.methods.common.prompts import LearnedPrompts, word_embeddings
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.training.optimisers import AdamW
from bolt.util.ranges import AtLeast1, Checked, Positive, Share


@dataclass(frozen=True)
class TptSettings(Checked):
    """The views, the context and the step. The defaults are the official ones, which are the same for every dataset.

    Attributes:
        views: views of each image, the un-augmented one first.
        kept: share of the views, those of lowest entropy, from which the loss is computed.
        learning_rate, weight_decay: hyperparameters of AdamW.
        steps: AdamW steps for each image.
        initial_words: the words that the context starts from.
    """

    views: AtLeast1 = 64
    kept: Share = 0.1
    learning_rate: Positive = 5e-3
    weight_decay: float = 0.01
    steps: AtLeast1 = 1
    initial_words: str = "a photo of a"


def entropy_of_mean(logits_VC: Tensor) -> Tensor:
    """Return the entropy of the mean probability of the views, in nats."""
    log_mean_C = logits_VC.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits_VC))
    smallest = torch.finfo(log_mean_C.dtype).min
    return -(log_mean_C.clamp_min(smallest) * log_mean_C.exp()).sum()


def tune(prompts: LearnedPrompts, start_KW: Tensor, unit_VD: Tensor, scale: float, settings: TptSettings) -> Tensor:
    """Return the context (K, W), tuned to one image's views. All steps use the views that the first step selects."""
    context_KW = start_KW.clone().requires_grad_()
    optimiser = AdamW([context_KW], lr=settings.learning_rate, weight_decay=settings.weight_decay)
    count = max(1, int(settings.kept * len(unit_VD)))
    kept_V: Tensor | None = None
    for _ in range(settings.steps):
        logits_VC = scale * unit_VD @ prompts.encode(context_KW).T
        if kept_V is None:
            kept_V = entropies(logits_VC.detach()).argsort(stable=True)[:count]
        optimiser.zero_grad()
        entropy_of_mean(logits_VC[kept_V]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return context_KW.detach()


@register(
    title="TPT",
    palette=53,
    summary="tunes the context words to the views of each image",
    paper="https://arxiv.org/abs/2209.07511",
    tracks=frozenset({"tta_image"}),
    trains_text=lambda settings: True,
    test_views=lambda settings: settings.views,
    tower_passes=lambda images, settings: TowerPasses(text_training=images * (settings.steps + 1)),
    training_forwards=2.0,
)
def adapt(task: Task, settings: TptSettings) -> Adapted:
    """Classify each test image with a context tuned to it.

    The text head is returned as the classifier of all other images.
    """
    backbone = task.backbone
    unit_NVD, scale = unit_test_features(task, settings.views), backbone.logit_scale
    start_KW = word_embeddings(backbone, settings.initial_words)
    prompts = LearnedPrompts(backbone, task.class_text.class_names, len(start_KW))
    logits = []
    for unit_VD in unit_NVD:
        context_KW = tune(prompts, start_KW, unit_VD, scale, settings)
        with torch.no_grad():
            logits.append(scale * prompts.encode(context_KW) @ unit_VD[EVALUATION_VIEW])
    return Adapted(task.text_head, fixed_NC=torch.stack(logits).cpu())
