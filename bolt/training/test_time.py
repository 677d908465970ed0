"""The loss and the batches of UFM (Unsupervised FixMatch), which trains on unlabelled test images.

Before training, every test image is classified. For each class, the images with the highest probabilities of this class
are *trusted*: their predictions become labels. One half of every batch consists of trusted images, which repeat
endlessly. The other half consists of the remaining images, each at most once per epoch. :func:`ufm_loss` compares the
prediction for the strong (augmented) view of a trusted image with the label of the image. For any other image, it
compares the predictions for the strong and the weak (plain) view. This is the test-time training of aTLAS (Zhang et
al., 2024). The BOLT authors' code divides a batch into the same halves.

Two errors of these authors' scripts are not repeated here. Because of an indexing error, the aTLAS script trusts every
image. With fewer than ten images per class on average, the number of trusted images per class is 0: then the BOLT
script trusts every image, too, but here no image is trusted.

Shape legend: N test images, B batch, R images of a batch that are not trusted, C classes, D joint embedding width,
S image side.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.tower import ImageTower
from bolt.clip.transfer import to_device
from bolt.task.task import EVALUATION_VIEW, Task, Unlabelled
from bolt.training.loop import Diverged

Map = Callable[[Tensor], Tensor]
Losses = tuple[Callable[[int, Tensor], Tensor], Callable[[int], Tensor]]
"""``loss_of_rows(epoch, rows)`` and ``order(epoch)``, as :func:`bolt.training.loop.fit` takes them."""

_TRUSTED_DIVISOR, _MAX_TRUSTED = 10, 100
_ENCODE_BATCH = 256


def trusted_per_class(images: int, classes: int) -> int:
    """Return the number of trusted images per class: a tenth of the mean number of images per class, at most 100."""
    return min(images // (_TRUSTED_DIVISOR * classes), _MAX_TRUSTED)


def trusted_samples(probabilities_NC: Tensor, per_class: int) -> Tensor:
    """Mark trusted images, boolean (N,): for every class, the ``per_class`` images with the highest probability.

    An image that several classes select counts once; its label is its predicted class. At equal probabilities the
    earlier image is taken.
    """
    ranked_NC = probabilities_NC.sort(dim=0, descending=True, stable=True).indices
    trusted_N = torch.zeros_like(probabilities_NC[:, 0], dtype=torch.bool)
    # The order is descending: ``[:per_class]`` takes no image if ``per_class`` is 0. In ascending order the slice would
    # be ``[-per_class:]``, which takes every image if ``per_class`` is 0.
    trusted_N[ranked_NC[:per_class].flatten()] = True
    return trusted_N


def two_streams(trusted_N: Tensor, batch_size: int, images: Unlabelled) -> Callable[[int], Tensor]:
    """Return ``order(epoch)`` -> the rows of an epoch, one batch after the other.

    A batch begins with images that are not trusted (half of the batch, rounded up). Trusted images follow. A row r < N
    is image r, which is not trusted. A row r >= N is the trusted image r - N. All batches of an epoch are full, so an
    epoch skips a few images that are not trusted. If these images are too few for half a batch, the epoch has a single,
    smaller batch with all of them. If no image is trusted, the other images fill whole batches.

    The trusted images repeat in an endless stream, with a new order in each pass. An epoch takes the next section of
    this stream.

    Args:
        trusted_N: whether an image is trusted.
        images: the task's unlabelled images. They give the order of each epoch.
    """
    numbers = torch.arange(len(trusted_N))
    others, trusted = numbers[~trusted_N], numbers[trusted_N]
    count, trusted_in_batch = len(trusted), batch_size // 2 if len(trusted) else 0
    batches = max(1, len(others) // (batch_size - trusted_in_batch))
    others_in_batch = min(len(others), batch_size - trusted_in_batch)
    wanted = batches * trusted_in_batch

    def order(epoch: int) -> Tensor:
        fresh = others[images.order("unlabelled", epoch, len(others))][: batches * others_in_batch]
        if not wanted:
            return fresh
        start, stop = epoch * wanted, (epoch + 1) * wanted
        first, end = start // count, -(-stop // count)
        stream = torch.cat([trusted[images.order("trusted", number, count)] for number in range(first, end)])
        section = stream[start - first * count :][:wanted]
        rows = fresh.view(batches, others_in_batch), len(trusted_N) + section.view(batches, trusted_in_batch)
        return torch.cat(rows, dim=1).flatten()

    return order


def ufm_loss(
    weak_BC: Tensor, strong_BC: Tensor, targets_B: Tensor, trusted_B: Tensor, threshold: float = 0.99
) -> Tensor:
    """Return the loss of Unsupervised FixMatch (UFM): the cross-entropy of strong views with targets from weak views.

    The target of an image is the softmax of its weak logits or, if the image is trusted, the class in ``targets_B``.
    The loss is the mean over the confident images, whose target has an entry above ``threshold``. The gradient flows
    into the strong logits only. This is the loss of aTLAS's test-time script. The "sharpening" of that script
    multiplies the target by a half and normalises it again. This changes nothing, so it is left out here.

    If no image is confident, the loss is 0 with a gradient of zeros. AdamW still takes a step on such a batch, by the
    moments of earlier gradients and by its weight decay.

    Args:
        weak_BC: logits of the un-augmented view; rows of trusted images have no effect.
        strong_BC: logits of the augmented view.
        targets_B: class of each trusted image; entries of other images have no effect.
        trusted_B: whether each image is trusted, boolean.
        threshold: probability that a target's largest entry must exceed.
    """
    strong_BC = strong_BC.float()
    predicted_BC = weak_BC.detach().float().softmax(dim=-1)
    labelled_BC = torch.zeros_like(strong_BC).scatter_(1, targets_B[:, None], 1.0)  # F.one_hot would wait for the GPU
    targets_BC = torch.where(trusted_B[:, None], labelled_BC, predicted_BC)
    confident_B = (targets_BC.amax(dim=-1) > threshold).float()
    losses_B = F.cross_entropy(strong_BC, targets_BC, reduction="none")
    return (confident_B * losses_B).sum() / confident_B.sum().clamp_min(1)


def unlabelled_losses(task: Task, encode: Map, classify: Map, batch_size: int, start: ImageTower | None) -> Losses:
    """Return UFM's loss, and the order that fills batches with trusted and other images (:func:`two_streams`).

    Args:
        encode, classify: the tower in training, and its classifier.
        batch_size: number of trusted and other images of a batch together.
        start: the tower that classifies the images before training. Its predictions decide which images are trusted,
            and become the labels of those images. By default it is the frozen tower, whose features are cached.

    Raises:
        bolt.training.loop.Diverged: if the starting tower gives NaN or infinite logits.
    """
    device, unlabelled = task.backbone.device, task.test_images
    logits_NC = _starting_logits(task, unlabelled, start)
    trusted_N = trusted_samples(logits_NC.softmax(dim=-1), trusted_per_class(*logits_NC.shape))
    predicted_N = logits_NC.argmax(dim=-1)

    def pixels(view: int, images: Tensor) -> Tensor:
        return task.backbone.normalise(unlabelled.pixels(view, images))

    def of_rows(epoch: int, rows: Tensor) -> Tensor:
        images, trusted_B = rows % unlabelled.size, rows >= unlabelled.size
        strong_B3SS = pixels(epoch + 1, images)
        # Trusted images have labels, so only the others need their weak view.
        rest = torch.nonzero(~trusted_B).flatten()
        weak_R3SS = pixels(EVALUATION_VIEW, images[rest])
        # The strong view comes first, because older versions of autocast cache the weights that they cast. After a weak
        # view under no_grad, the cached weights would have no graph.
        strong_BC = classify(encode(strong_B3SS))
        weak_BC = torch.zeros_like(strong_BC)
        with torch.no_grad():
            weak_BC[to_device(rest, device)] = classify(encode(weak_R3SS))
        return ufm_loss(weak_BC, strong_BC, to_device(predicted_N[images], device), to_device(trusted_B, device))

    return of_rows, two_streams(trusted_N, batch_size, unlabelled)


def _starting_logits(task: Task, unlabelled: Unlabelled, start: ImageTower | None) -> Tensor:
    """Return the text head's logits (N, C) of the test images under ``start`` or the frozen tower, on the CPU."""
    if start is None:
        features_ND = unlabelled.features().to(task.head_CD)
    else:
        batches = torch.split(torch.arange(unlabelled.size), _ENCODE_BATCH)
        pixels = (unlabelled.pixels(EVALUATION_VIEW, rows) for rows in batches)
        features_ND = torch.cat([task.backbone.encode_images(each, start) for each in pixels])
    logits_NC = task.text_head(features_ND).float().cpu()
    if not bool(torch.isfinite(logits_NC).all()):
        raise Diverged("before training, logits of the test images are NaN or infinite, so no image can be trusted")
    return logits_NC
