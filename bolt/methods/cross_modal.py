"""Cross-modal linear probe: text embeddings are extra training samples of their classes (Lin et al., 2023).

Paper: "Multimodality Helps Unimodality: Cross-Modal Few-Shot Learning with Multimodal Models", CVPR 2023,
arXiv:2301.06267, equations 3 to 5. ``logits = scale W f`` without a bias. Images and texts are unit vectors in one
space. Every batch is half images and half texts, and the loss is the mean cross-entropy over the batch. W starts at the
text head and is not normalised again.

The optimiser is the official one: AdamW. The rate rises linearly over 50 iterations, then falls with a cosine. The
official code tries rates, weight decays and batch sizes, and chooses by labelled validation images, four per class.
Here one setting of the official grid is used, without labels: rate 1e-3, weight decay 0.01, batches of 8. As in the
official code, the result is the mean of the trained weights and the text head (WiSE-FT, Wortsman et al., 2022).

The length of the training: the official code makes up to 12,800 iterations and keeps the best of 128 snapshots by
validation images. Without validation images, so long a training over-fits: of twenty image samples, each is shown 2,560
times. Here the training ends after 20 passes over the image samples, and after 12,800 iterations at the latest. The
mean accuracy of the averaged weights was measured on eight datasets of drawn pictures, on the training images that are
not in the support. With 10, 20, 40 and 80 passes it is 69.2, 69.2, 68.9 and 68.8 % at k = 1 (zero-shot 61.4 %), and
71.5, 71.5, 70.9 and 70.7 % at k = 4 (zero-shot 61.6 %). On one of the eight datasets, whose classes are colours of ink,
the accuracy is below zero-shot with every number of passes, by up to four points.

What else differs from the official code:

- An image gives its un-augmented feature and ``views`` augmented ones. The official code has a centre crop and its
  mirror image.
- A class has one text sample, the mean embedding of its prompts. The official code does the same except on ImageNet.
- If there are fewer images or texts than half a batch, that half is smaller. The official code fails.

Shape legend: N support images, M = N (1 + views) image samples, C classes, D joint embedding width.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bolt.clip.transfer import to_device
from bolt.methods.base import register
from bolt.methods.common.frozen_features import unit_support_features
from bolt.seeds import torch_generator
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import fit_task
from bolt.training.loop import PlainRecipe, Schedule, cross_entropy
from bolt.util.ranges import AtLeast0, AtLeast1, AtLeast2, Checked, Fraction, NotNegative, Positive

_WARMUP_STEPS, _WARMUP_RATE = 50, 1e-5
_STEPS_PER_EPOCH = 100
"""Iterations of one epoch. After an epoch the loss is reported; on the track ``meta`` the classifier is also scored."""


@dataclass(frozen=True)
class CrossModalSettings(Checked):
    """The training recipe and the mixture with the text head.

    Attributes:
        batch_size, learning_rate, weight_decay: hyperparameters of AdamW. Half of a batch are images, half are texts.
        passes: how often the training visits every image sample. The number of iterations is rounded up to a multiple
            of 100.
        iterations: the largest number of iterations, whatever ``passes`` is.
        wise_ft: share of the trained weights in the mixture with the text head; 1 takes the trained weights alone.
        views: augmented views of each image, in addition to the un-augmented one.
    """

    iterations: AtLeast1 = 12_800
    batch_size: AtLeast2 = 8
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 0.01
    wise_ft: Fraction = 0.5
    views: AtLeast0 = 1
    passes: AtLeast1 = 20


def warmup_schedule(rate: float, iterations: int) -> Schedule:
    """Return the learning rate of every step: a linear rise up to ``rate`` at step 50, then a cosine.

    Step 0 has the rate 1e-5, and a step s from 1 to 49 has ``rate s / 50``. The cosine reaches zero 50 steps after the
    end of the training. So the last rate is 0.6 % of ``rate`` if the training has 1,000 steps, but 52 % if it has 100.
    """

    def at(step: int, steps_per_epoch: int) -> float:
        if step == 0:
            return _WARMUP_RATE
        if step < _WARMUP_STEPS:
            return rate * step / _WARMUP_STEPS
        return 0.5 * rate * (1 + math.cos(math.pi * (step - _WARMUP_STEPS) / iterations))

    return at


def batches(task: Task, stream: str, size: int, in_batch: int) -> Iterator[Tensor]:
    """Yield batches of sample numbers without end. Every pass has a new order and leaves out a partial last batch."""
    lap = 0
    while True:
        generator = torch_generator("cross modal", stream, task.dataset, task.seed, lap, size)
        numbers = torch.randperm(size, generator=generator)
        yield from (numbers[at : at + in_batch] for at in range(0, size - in_batch + 1, in_batch))
        lap += 1


def iterations_of(settings: CrossModalSettings, samples: int, in_batch: int) -> int:
    """Return how many iterations a training on ``samples`` images takes, with ``in_batch`` images in a batch."""
    needed = math.ceil(settings.passes * samples / in_batch / _STEPS_PER_EPOCH) * _STEPS_PER_EPOCH
    return min(settings.iterations, needed)


@register(
    title="Cross-modal probe",
    palette=25,
    summary="trains a linear head on images and text embeddings together",
    paper="https://arxiv.org/abs/2301.06267",
    version=2,
    support_feature_views=lambda settings: settings.views,
)
def adapt(task: Task, settings: CrossModalSettings) -> Adapted:
    """Train the head on images and texts, and mix it with the text head."""
    images_MD = torch.cat([unit_support_features(task, view) for view in range(settings.views + 1)])
    head_CD = task.head_CD.to(images_MD)
    in_text = min(settings.batch_size // 2, len(head_CD))
    in_images = min(settings.batch_size - settings.batch_size // 2, len(images_MD))
    iterations = iterations_of(settings, len(images_MD), in_images)
    images = batches(task, "images", len(images_MD), in_images)
    texts = batches(task, "texts", len(head_CD), in_text)
    rows = (torch.cat([next(images), len(images_MD) + next(texts)]) for _ in range(iterations))
    labels_M = task.support.labels_N.to(images_MD.device).repeat(settings.views + 1)
    return train_head(task, replace(settings, iterations=iterations), images_MD, labels_M, rows, in_images + in_text)


def train_head(
    task: Task, settings: CrossModalSettings, images_MD: Tensor, labels_M: Tensor, rows: Iterator[Tensor], in_batch: int
) -> Adapted:
    """Train W, which starts at the text head, and mix it with the text head.

    Args:
        images_MD, labels_M: unit image features and their classes.
        rows: the batches, each as the indices of its ``in_batch`` samples. Index r < M is image r; index M + c is the
            text of class c.
    """
    scale = task.backbone.logit_scale
    head_CD = task.head_CD.to(images_MD)
    samples_SD = torch.cat([images_MD, head_CD])
    labels_S = torch.cat([labels_M, torch.arange(len(head_CD)).to(labels_M)])
    weight_CD = head_CD.clone().requires_grad_()
    steps = math.gcd(settings.iterations, _STEPS_PER_EPOCH)
    recipe = PlainRecipe(settings.iterations // steps, in_batch, settings.learning_rate, settings.weight_decay)

    def loss_of_rows(epoch: int, batch: Tensor) -> Tensor:
        batch = to_device(batch, samples_SD.device)
        return cross_entropy(scale * samples_SD[batch] @ weight_CD.T, labels_S[batch])

    def adapted() -> Adapted:
        mixed_CD = torch.lerp(head_CD, weight_CD.detach(), settings.wise_ft)
        return Adapted(LinearClassifier(mixed_CD, scale=scale), None, weight_CD.numel())

    def order(epoch: int) -> Tensor:
        return torch.cat([next(rows) for _ in range(steps)])

    schedule = warmup_schedule(settings.learning_rate, settings.iterations)
    return fit_task(task, [weight_CD], loss_of_rows, order, recipe, adapted, schedule=schedule)
