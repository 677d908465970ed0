"""Tasks with random features like CLIP's and without pixels, for the methods that use frozen features only.

As in CLIP, all image features share a large mean, most of the noise lies in a few directions, and text features are far
from image features. The cosine of a class's text with its images is about 0.25, hardly larger than with other images.
The logit scale is CLIP's 100.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.protocol import STRICT, Protocol
from bolt.task.support import batch_order
from bolt.task.task import Adapted, Support, Task

WIDTH = 96


@dataclass(frozen=True)
class Problem:
    """A task, and the test split on which its method is scored."""

    task: Task
    test_ND: Tensor
    test_labels_N: Tensor

    def accuracy(self, adapted: Adapted) -> float:
        """Return the accuracy on the test split in per cent."""
        return 100 * float((adapted.classify(self.test_ND).argmax(dim=-1) == self.test_labels_N).float().mean())

    def zero_shot(self) -> float:
        return self.accuracy(Adapted(self.task.text_head))


def no_pixels(view: int, rows: Tensor) -> Tensor:
    raise AssertionError("a method that uses frozen features only read the pixels")


def frozen_task(
    backbone: Backbone,
    features: Callable[[int], Tensor],
    labels_N: Tensor,
    head_CD: Tensor,
    protocol: Protocol = STRICT,
    seed: int = 1,
) -> Task:
    """Return a task whose support has these features and no pixels."""
    size = len(labels_N)
    support = Support(
        labels_N=labels_N,
        indices_N=torch.arange(size),
        pixels=no_pixels,
        features=features,
        order=lambda epoch: batch_order(size, dataset="frozen", seed=seed, epoch=epoch),
    )
    scaled = copy.copy(backbone)
    scaled.logit_scale = 100.0
    return Task(scaled, head_CD, support, None, protocol, "frozen", seed)


def clip_like(
    backbone: Backbone,
    *,
    shots: int,
    classes: int = 10,
    seed: int = 1,
    protocol: Protocol = STRICT,
    signal: float = 0.3,
    text_error: float = 0.3,
) -> Problem:
    """Return a task with ``classes`` x ``shots`` support images, rank-major, and 60 test images of every class."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    means_2D = torch.linalg.qr(normal(WIDTH, 2)).Q.T
    image_mean_D, text_mean_D = means_2D[0], F.normalize(means_2D[1] + 0.25 * means_2D[0], dim=-1)
    class_CD = normal(classes, WIDTH)
    class_CD = F.normalize(class_CD - class_CD @ means_2D.T @ means_2D, dim=-1)
    spectrum_D = torch.arange(1, WIDTH + 1) ** -0.5
    spectrum_D = spectrum_D / spectrum_D.norm()
    axes_DD = torch.linalg.qr(normal(WIDTH, WIDTH)).Q

    def noise(count: int) -> Tensor:
        return (normal(count, WIDTH) * spectrum_D) @ axes_DD

    def images(labels: Tensor) -> Tensor:
        return 9 * (image_mean_D + signal * class_CD[labels] + 0.75 * noise(len(labels)))

    head_CD = F.normalize(text_mean_D + 0.3 * class_CD + text_error * noise(classes), dim=-1)
    test_labels_N = torch.arange(classes).repeat(60)
    test_ND = images(test_labels_N)
    # shots are drawn after the test split, one rank after another, so that fewer are a prefix of more
    labels_N = torch.arange(classes).repeat(shots)
    plain_ND = torch.cat([images(torch.arange(classes)) for _ in range(shots)])
    views = [plain_ND] + [plain_ND + 9 * 0.3 * noise(len(labels_N)) for _ in range(20)]
    task = frozen_task(backbone, lambda view: views[view], labels_N, head_CD, protocol, seed)
    return Problem(task, test_ND, test_labels_N)


def with_features(task: Task, change: Callable[[int, Tensor], Tensor]) -> Task:
    """Return the task with the features of each view replaced by ``change(view, features)``."""
    features = task.support.features
    return replace(task, support=replace(task.support, features=lambda view: change(view, features(view))))
