"""CLAP: class prototypes that start at the text, with a penalty on their distance to it (Silva-Rodriguez et al., 2024).

Paper: "A Closer Look at the Few-Shot Adaptation of Large Vision-Language Models", CVPR 2024, arXiv:2312.12730,
equations 5 to 9. The prototypes w_c start at the raw text embeddings e_c::

    logits_c = scale cos(f, w_c)
    loss = cross-entropy + (1 / C) sum_c lambda_c |w_c - e_c|^2

lambda_c is the mean zero-shot probability of class c over all views of the support images of c, computed once before
training. A class that the text head classifies well gets a larger lambda, so its prototype stays closer to the text.
Without the penalty the method is ZS-LP, the paper's zero-shot initialised linear probe: ``constraint: none``, or the
preset ``zs_lp``.

The recipe is made for tasks without validation data. The defaults are the official ones: SGD with momentum 0.9, rate
0.1, no weight decay, 300 epochs, last epoch kept. Twenty augmented views of every image form one pool. An epoch takes
``max(1, N // 256)`` batches of up to 256 rows of the shuffled pool, so a support below 512 images gives 300 steps.

The official e_c is the raw text embedding, before normalisation. The effect of the rate and of the penalty depends on
the length of e_c. A task has unit embeddings only, so they are multiplied by ``text_norm``. The raw length in OpenAI's
towers is roughly 7 to 11; 10 is used for every dataset.

What else differs from the official code:

- The embedding of a class is the mean of normalised prompts. The official one is the mean of raw prompts.
- A class without an image gets the mean lambda of the other classes. The official code fails.

Shape legend: N support images, P = views x N rows of the pool, C classes, D joint embedding width.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.transfer import to_device
from bolt.methods.base import register
from bolt.methods.common.coop_training import coop_options
from bolt.methods.common.frozen_features import support_features
from bolt.seeds import torch_generator
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import fit_task
from bolt.training.loop import PlainRecipe, cross_entropy
from bolt.util.ranges import AtLeast1, Checked, Positive


@dataclass(frozen=True)
class ClapSettings(Checked):
    """The constraint and the training recipe; the defaults are the official ones.

    Attributes:
        constraint: ``class_adaptive`` penalises the distance from the text, with a weight for each class; ``none``
            trains by cross-entropy alone (ZS-LP).
        text_norm: length to which the unit text embeddings are scaled, about the length of raw text embeddings.
        epochs, batch_size, learning_rate: hyperparameters of SGD with momentum 0.9.
        views: augmented views of each image in the pool.
    """

    constraint: Literal["class_adaptive", "none"] = "class_adaptive"
    text_norm: Positive = 10.0
    epochs: AtLeast1 = 300
    batch_size: AtLeast1 = 256
    learning_rate: Positive = 0.1
    views: AtLeast1 = 20


def class_weights(probabilities_PC: Tensor, labels_P: Tensor) -> Tensor:
    """Return lambda (C,): each class's mean probability over the rows with its label.

    A class without rows gets the mean lambda of the other classes.
    """
    classes = probabilities_PC.shape[1]
    own_P = probabilities_PC.gather(1, labels_P[:, None]).squeeze(1)
    counts_C = labels_P.bincount(minlength=classes)
    means_C = torch.zeros(classes).to(own_P).index_add_(0, labels_P, own_P) / counts_C.clamp_min(1)
    return torch.where(counts_C > 0, means_C, means_C[counts_C > 0].mean())


@register(
    title="CLAP",
    palette=24,
    summary="trains class prototypes that a penalty holds to the text embeddings",
    paper="https://arxiv.org/abs/2312.12730",
    presets={"zs_lp": {"constraint": "none"}},
    support_feature_views=lambda settings: settings.views,
)
def adapt(task: Task, settings: ClapSettings) -> Adapted:
    """Train prototypes that start at the text head's embeddings, scaled to the length ``text_norm``."""
    return train_prototypes(task, settings, settings.text_norm * task.head_CD)


def train_prototypes(task: Task, settings: ClapSettings, text_CD: Tensor) -> Adapted:
    """Train prototypes (C, D) that start at the raw text embeddings ``text_CD``."""
    device, scale = task.backbone.device, task.backbone.logit_scale
    text_CD = text_CD.to(device, torch.float32)
    pool_PD = torch.cat([support_features(task, view) for view in range(1, settings.views + 1)])
    labels_P = task.support.labels_N.to(device).repeat(settings.views)
    prototypes_CD = text_CD.clone().requires_grad_()
    lambda_C = torch.zeros(len(text_CD)).to(text_CD)
    if settings.constraint == "class_adaptive":
        zero_shot = LinearClassifier(F.normalize(text_CD, dim=-1), scale=scale)
        lambda_C = class_weights(zero_shot(pool_PD).softmax(dim=-1), labels_P)
    batches = max(1, len(task.support) // settings.batch_size)
    recipe = PlainRecipe(settings.epochs, settings.batch_size, settings.learning_rate)

    def classifier() -> LinearClassifier:
        return LinearClassifier(F.normalize(prototypes_CD, dim=-1), scale=scale)

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        rows = to_device(rows, device)
        distance_C = (prototypes_CD - text_CD).square().sum(dim=-1)
        return cross_entropy(classifier()(pool_PD[rows]), labels_P[rows]) + (lambda_C * distance_C).mean()

    def order(epoch: int) -> Tensor:
        generator = torch_generator("clap pool", task.dataset, task.seed, epoch, len(pool_PD))
        return torch.randperm(len(pool_PD), generator=generator)[: batches * settings.batch_size]

    def adapted() -> Adapted:
        with torch.no_grad():
            return Adapted(classifier(), None, prototypes_CD.numel(), {"lambda_mean": float(lambda_C.mean())})

    return fit_task(task, [prototypes_CD], loss_of_rows, order, recipe, adapted, **coop_options(recipe))
