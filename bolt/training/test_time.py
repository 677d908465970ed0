"""Adapting to unlabelled test images by UFM: trusted samples, two streams of batches, two views of each image.

Before anything is trained, every test image is classified. The images that a class is most sure of are *trusted*:
their predictions become labels. Then every batch is one half trusted images, which come round again and again, and
one half the others, each at most once an epoch; :func:`bolt.training.objectives.ufm_loss` compares two views of each.
(The test-time training of aTLAS, Zhang et al., 2024, with the halves of the BOLT authors' code.)

The aTLAS script trusts every image by an indexing slip, and both scripts trust every image where the images are too
few to trust any. Neither is done here.

Shape legend: N test images, B batch, C classes, D joint embedding width, S image side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.task.task import EVALUATION_VIEW, Task, Unlabelled, cosine_classifier
from bolt.training.loop import Diverged, TrainingRecipe
from bolt.training.objectives import ufm_loss
from bolt.training.trainable import Losses, Trainable

_TRUSTED_SHARE, _MOST_TRUSTED = 10, 100
_ENCODE_BATCH = 256


def trusted_per_class(images: int, classes: int) -> int:
    """How many images a class may trust: a tenth of its share of all, at most 100, and perhaps none."""
    return min(images // (_TRUSTED_SHARE * classes), _MOST_TRUSTED)


def trusted_samples(probabilities_NC: Tensor, per_class: int) -> Tensor:
    """Which images are trusted, boolean (N,): of every class the ``per_class`` with its highest probability.

    An image may be mined by several classes and for another class than the one it is predicted as; it counts once.
    The earlier of equally probable images is taken.
    """
    ranked_NC = probabilities_NC.sort(dim=0, descending=True, stable=True).indices
    trusted_N = torch.zeros(len(probabilities_NC), dtype=torch.bool, device=probabilities_NC.device)
    # Counted from the front: "the last k" is a slice that takes everything when k is 0.
    trusted_N[ranked_NC[:per_class].flatten()] = True
    return trusted_N


@dataclass(frozen=True)
class TwoStreams:
    """Rows of the batches of an epoch: of each batch the larger half unlabelled images, then trusted ones.

    A row below ``size`` is the unlabelled image of that number, a row from ``size`` on is the trusted image
    ``row - size``. All batches of an epoch are full, so an epoch leaves a ragged tail of the unlabelled images to
    the next ones; if they do not fill a half, the only batch has all of them. Without trusted images, whole batches are
    unlabelled.

    Attributes:
        unlabelled: numbers of the images that are not trusted.
        trusted: numbers of those that are.
        size: how many images there are, N.
        batch_size: rows of a batch.
        images: the images' keyed orders.
    """

    unlabelled: Tensor
    trusted: Tensor
    size: int
    batch_size: int
    images: Unlabelled

    @property
    def trusted_in_batch(self) -> int:
        """Trusted rows of a batch."""
        return self.batch_size // 2 if len(self.trusted) else 0

    @property
    def batches(self) -> int:
        """Batches of an epoch, at least 1."""
        return max(1, len(self.unlabelled) // (self.batch_size - self.trusted_in_batch))

    def order(self, epoch: int) -> Tensor:
        """The rows of an epoch, batch after batch."""
        fresh = self.unlabelled[self.images.order("unlabelled", epoch, len(self.unlabelled))]
        in_batch = min(len(fresh), self.batch_size - self.trusted_in_batch)
        return torch.cat(
            [
                fresh[: self.batches * in_batch].view(self.batches, in_batch),
                self.size + self._recycled(epoch).view(self.batches, self.trusted_in_batch),
            ],
            dim=1,
        ).flatten()

    def _recycled(self, epoch: int) -> Tensor:
        """An epoch's part of the endless stream of trusted images, each lap of which is a new permutation."""
        wanted, lap_size = self.batches * self.trusted_in_batch, len(self.trusted)
        if not wanted:
            return self.trusted[:0]
        start, stop = epoch * wanted, (epoch + 1) * wanted
        laps = range(start // lap_size, -(-stop // lap_size))
        stream = torch.cat([self.trusted[self.images.order("trusted", lap, lap_size)] for lap in laps])
        skipped = start - laps.start * lap_size
        return stream[skipped : skipped + wanted]


def unlabelled_losses(
    task: Task, unlabelled: Unlabelled, trainable: Trainable, recipe: TrainingRecipe, start: ImageTower | None
) -> Losses:
    """The UFM loss of two-stream batches, and their order.

    Args:
        unlabelled: the task's own.
        start: the tower whose predictions are trusted; the frozen one by default, whose features are at hand.
        recipe: its batch size is that of the two halves together.

    Raises:
        bolt.training.loop.Diverged: when the starting tower gives NaN or infinite logits.
    """
    device = task.backbone.device
    classify = trainable.classify or cosine_classifier(task.head_CD, task.backbone.logit_scale)
    logits_NC = _starting_logits(task, unlabelled, start)
    trusted_N = trusted_samples(logits_NC.softmax(dim=-1), trusted_per_class(*logits_NC.shape))
    predicted_N = logits_NC.argmax(dim=-1)
    numbers = torch.arange(unlabelled.size)
    streams = TwoStreams(numbers[~trusted_N], numbers[trusted_N], unlabelled.size, recipe.batch_size, unlabelled)

    def logits_of(view: int, images: Tensor) -> Tensor:
        return classify(trainable.encode(task.backbone.normalise(unlabelled.pixels(view, images))))

    def of_rows(epoch: int, rows: Tensor) -> Tensor:
        images, trusted_B = rows % unlabelled.size, rows >= unlabelled.size
        # The strong view first: older versions of autocast keep the weights they cast, and under no_grad without graph.
        strong_BC = logits_of(epoch + 1, images)
        guessing = torch.nonzero(~trusted_B).flatten()
        weak_BC = torch.zeros_like(strong_BC)
        with torch.no_grad():  # trusted images have their labels, so only the others' weak views are looked at
            weak_BC[guessing.to(device)] = logits_of(EVALUATION_VIEW, images[guessing])
        return ufm_loss(weak_BC, strong_BC, predicted_N[images].to(device), trusted_B.to(device))

    return Losses(of_rows, streams.order)


def _starting_logits(task: Task, unlabelled: Unlabelled, start: ImageTower | None) -> Tensor:
    """Logits of every test image under the text head before training, on the CPU, (N, C)."""
    classify = cosine_classifier(task.head_CD, task.backbone.logit_scale)
    if start is None:
        features_ND = unlabelled.features().to(task.head_CD)
    else:
        lots = torch.split(torch.arange(unlabelled.size), _ENCODE_BATCH)
        features_ND = torch.cat(
            [task.backbone.encode_images(unlabelled.pixels(EVALUATION_VIEW, rows), start) for rows in lots]
        )
    logits_NC = classify(features_ND).float().cpu()
    if not bool(torch.isfinite(logits_NC).all()):
        raise Diverged("before any training, logits of the test images are NaN or infinite; none can be trusted")
    return logits_NC
