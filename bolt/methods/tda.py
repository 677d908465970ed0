"""TDA: a cache of confident and a cache of uncertain test images, filled as the images come (Karmanov et al., 2024).

Paper: "Efficient Test-Time Adaptation of Vision-Language Models", CVPR 2024, arXiv:2403.18293, equations 3 to 7. The
test images come one at a time; nothing is trained. For a unit feature f with zero-shot softmax p and entropy H = H(p)::

    logits = scale f T^T + alpha sum_positive exp(-beta (1 - f . key)) onehot(class)
                         - alpha_n sum_negative exp(-beta_n (1 - f . key)) mask

- The positive cache holds, for every predicted class, the 3 images of lowest entropy.
- The negative cache holds, for every predicted class, the 2 images of lowest entropy among those with 0.2 < h < 0.5. As
  in the official code, h is the entropy in nats divided by log2(C). So the maximum of h is log 2 = 0.693, not 1. The
  mask of an image marks the classes with 0.03 < p < 1. Queries near the image lose logits in these classes.
- If a class is full, an image of strictly lower entropy replaces the image of highest entropy. An image enters before
  it is classified, so its own key is in the cache.

alpha = 2 and beta = 5 are the official numbers for ImageNet, and are used for every dataset. The official code has
other numbers for other datasets, and does not say how they were chosen. alpha_n = 0.117, beta_n = 1 and all thresholds
and sizes are the same in all official configurations.

Every image is scored as it comes, as in the paper, in the order that the task's seed gives and in the un-augmented
view. A saved model has the caches as they are after the last image. ``details`` give the share of images for which the
saved model predicts the class that was predicted when the image came. The official code's 64 views of each image, for
ImageNet's variants, are left out.

Shape legend: N test images, C classes, D joint embedding width, K keys in both caches.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Idle, register
from bolt.methods.common.frozen_features import unit_test_features
from bolt.task.classifiers import CacheClassifier
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast0, AtLeast1, Checked, NotNegative, Range


@dataclass(frozen=True)
class TdaSettings(Checked):
    """The weights, sizes and thresholds of the two caches; the defaults are the official ones for ImageNet.

    Attributes:
        alpha, beta: weight and sharpness of the positive cache.
        alpha_negative, beta_negative: weight and sharpness of the negative cache.
        capacity, capacity_negative: images per predicted class.
        entropy_low, entropy_high: an image enters the negative cache only if h, its entropy divided by log2(C), is
            between these two numbers.
        mask_above: probability above which a class belongs to an image's mask.
    """

    alpha: NotNegative = 2.0
    beta: NotNegative = 5.0
    alpha_negative: NotNegative = 0.117
    beta_negative: NotNegative = 1.0
    capacity: AtLeast1 = 3
    capacity_negative: AtLeast0 = 2
    entropy_low: float = 0.2
    entropy_high: float = 0.5
    mask_above: float = 0.03


@dataclass
class LowestEntropies:
    """The lowest entropies of the images of each predicted class.

    Attributes:
        capacity: how many entropies a class keeps.
        entropies: class -> the entropies that it keeps, in the order of the class's rows in the cache.
    """

    capacity: int
    entropies: dict[int, list[float]] = field(default_factory=dict)

    def insert(self, predicted: int, entropy: float) -> int | None:
        """Add the entropy of an image; return the image's row in the predicted class, or ``None`` if it is not kept.

        In a full class, the image replaces the one of highest entropy if that entropy is higher than ``entropy``.
        """
        entropies = self.entropies.setdefault(predicted, [])
        if len(entropies) < self.capacity:
            entropies.append(entropy)
            return len(entropies) - 1
        worst = max(range(self.capacity), key=entropies.__getitem__, default=0)
        if not entropies or entropy >= entropies[worst]:
            return None
        entropies[worst] = entropy
        return worst


class Caches:
    """The positive and the negative cache, to which test images are added one by one.

    One :class:`CacheClassifier` holds the keys, values and sharpness of both caches. Every class has fixed rows of
    keys: first come the positive rows of all classes, then the negative rows. The value of a free row is zero, so the
    row adds nothing.
    """

    def __init__(self, head_CD: Tensor, scale: float, settings: TdaSettings) -> None:
        classes, width = head_CD.shape
        positive_rows, negative_rows = classes * settings.capacity, classes * settings.capacity_negative
        self.settings = settings
        self.positive = LowestEntropies(settings.capacity)
        self.negative = LowestEntropies(settings.capacity_negative)
        betas = [settings.beta] * positive_rows + [settings.beta_negative] * negative_rows
        beta_K = torch.tensor(betas).to(head_CD)
        keys_KD, values_KC = (torch.zeros(len(beta_K), columns).to(head_CD) for columns in (width, classes))
        self.classifier = CacheClassifier(head_CD, keys_KD, values_KC, scale, 1.0, beta_K)

    def insert(self, unit_D: Tensor) -> None:
        """Add an image to the positive cache, to the negative cache, to both or to none, as its entropy decides."""
        settings, logits_C = self.settings, self.classifier.scale * self.classifier.head_CD @ unit_D
        p_C = logits_C.softmax(dim=-1)
        entropy = float(-(p_C * logits_C.log_softmax(dim=-1)).sum())
        predicted, classes = int(logits_C.argmax()), len(p_C)
        place = self.positive.insert(predicted, entropy)
        if place is not None:
            value_C = settings.alpha * F.one_hot(logits_C.argmax(), classes)
            self._write(predicted * settings.capacity + place, unit_D, value_C)
        relative = entropy / math.log2(classes) if classes > 1 else 0.0
        if settings.entropy_low < relative < settings.entropy_high:
            place = self.negative.insert(predicted, entropy)
            if place is not None:
                mask_C = (p_C > settings.mask_above) & (p_C < 1)
                row = classes * settings.capacity + predicted * settings.capacity_negative + place
                self._write(row, unit_D, -settings.alpha_negative * mask_C)

    def _write(self, row: int, unit_D: Tensor, value_C: Tensor) -> None:
        self.classifier.keys_ND[row] = unit_D
        self.classifier.values_NC[row] = value_C.to(unit_D)

    def final(self) -> CacheClassifier:
        """Return the classifier without the rows whose value is zero, as they add nothing."""
        full = self.classifier
        used_K = full.values_NC.any(dim=-1)
        assert isinstance(full.beta, Tensor)
        return replace(full, keys_ND=full.keys_ND[used_K], values_NC=full.values_NC[used_K], beta=full.beta[used_K])


@register(
    title="TDA",
    palette=27,
    summary="keeps caches of confident and of uncertain test images beside the text head",
    paper="https://arxiv.org/abs/2403.18293",
    version=2,
    tracks=frozenset({"tta_stream"}),
    idle=(
        Idle(
            ("alpha_negative", "beta_negative", "entropy_low", "entropy_high", "mask_above"),
            {"capacity_negative": Range("at least 1", bool)},
        ),
    ),
)
def adapt(task: Task, settings: TdaSettings) -> Adapted:
    """Insert each test image into the caches, then score it. Raises ``ValueError`` if the task has no test images."""
    unit_ND = unit_test_features(task)
    caches = Caches(task.head_CD.to(unit_ND), task.backbone.logit_scale, settings)
    online_NC = torch.empty(len(unit_ND), len(task.head_CD))
    for image in task.test_images.order("tda", 0, len(unit_ND)).tolist():
        caches.insert(unit_ND[image])
        online_NC[image] = caches.classifier(unit_ND[image][None])[0]
    final = caches.final()
    alike = float((final(unit_ND).argmax(dim=-1).cpu() == online_NC.argmax(dim=-1)).float().mean())
    details = {"agreement_with_final": 100 * alike, "keys": len(final.keys_ND)}
    return Adapted(final, details=details, fixed_NC=online_NC)
