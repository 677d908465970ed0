"""Fine-tunes a source model: the whole image tower on the training images of one dataset.

The recipe is taken from the task-vector literature (Ilharco et al., "Editing models with task arithmetic"): AdamW,
cross-entropy against the frozen zero-shot head, light random crops, last epoch kept.

Shape legend: N training images, C classes, D joint embedding width, S image side.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.transfer import to_device
from bolt.protocol import STRICT
from bolt.task.classifiers import CosineClassifier
from bolt.training.loop import MetricsCallback, TrainingRecipe, cross_entropy, fit

SOURCE_RECIPE = TrainingRecipe(epochs=10, batch_size=128, learning_rate=1e-5, weight_decay=0.1, warmup_steps=500)
"""The published recipe. Published trainings take about 2000 steps, so the number of epochs should be chosen for each
dataset. The warm-up takes 500 steps, so a training with fewer steps never reaches ``learning_rate``. Such a training
should set ``warmup_steps=None`` and a ``warmup_fraction``."""


def finetune_source(
    backbone: Backbone,
    head_CD: Tensor,
    labels_N: Tensor,
    pixels: Callable[[int, Tensor], Tensor],
    order: Callable[[int], Tensor],
    recipe: TrainingRecipe = SOURCE_RECIPE,
    report: MetricsCallback = lambda epoch, metrics: None,
    *,
    in_place: bool = False,
    **options: Any,
) -> dict[str, Tensor]:
    """Fine-tune the image tower on one dataset; returns every tensor of the result by open_clip name.

    Args:
        backbone: the pre-trained model to start from.
        head_CD: the dataset's frozen zero-shot head, unit rows.
        labels_N: class of each training image.
        pixels: ``pixels(view, rows)`` -> uint8 (len(rows), 3, S, S): random crops of the images, drawn from
            ``bolt.clip.augment.SOURCE_CROP``. Every ``view`` has other crops. Epoch e reads view e + 1.
        order: ``order(epoch)`` -> a permutation of the rows.
        recipe, report: see :func:`bolt.training.loop.fit`.
        in_place: train the backbone's own tower instead of a copy. This saves the memory of a second tower.
        options: ``on_epoch_end`` and ``resume`` of :func:`bolt.training.loop.fit`.

    Raises:
        bolt.training.loop.Diverged: if a loss, or a parameter at the end of an epoch, is NaN or infinite.
    """
    tower = backbone.tower
    tower = tower.requires_grad_() if in_place else tower.copy(trainable=tower.state_dict_open_clip())
    classify = CosineClassifier(head_CD.to(backbone.device), backbone.logit_scale)
    labels_N = labels_N.to(backbone.device)

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        images = backbone.normalise(pixels(epoch + 1, rows))
        return cross_entropy(classify(tower(images)), labels_N[to_device(rows, backbone.device)])

    options["precision"] = backbone.precision
    fit(tower.parameters(), loss_of_rows, order, recipe, STRICT, report, **options)
    return tower.state_dict_open_clip()
