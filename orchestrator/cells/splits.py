"""The images that a cell is scored on, with their labels.

Shape legend: N images of a split, B batch, C classes, D embedding width, S image side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.task.support import validation_tenth
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.cells.inputs import CellInputs
from orchestrator.core.cell import DatasetRef
from orchestrator.util.errors import UserError
from orchestrator.util.grouping import grouped


@dataclass(frozen=True)
class EvaluationSplit:
    """The images of one dataset that a cell is scored on.

    Attributes:
        name: the name of the scored images in results and reports.
        classes: indices of the classes from which predictions are chosen. The target's classes have the first indices.
            If the dataset is scored with its own class names, its classes follow.
        labels_N: index of each image's class.
        rows_N: positions of the images in the dataset's split; ``None`` for the whole test split.
        pixels: ``pixels(start, stop)`` -> uint8 (B, 3, S, S).
        frozen: ``frozen(start, stop)`` -> the frozen tower's features (B, D), a copy: classifiers divide them in place.
        own_head: the zero-shot head of a dataset that is scored with its own class names; otherwise ``None``.
    """

    dataset: DatasetRef
    name: str
    classes: range
    labels_N: Tensor
    rows_N: Tensor | None
    pixels: Callable[[int, int], Tensor]
    frozen: Callable[[int, int], Tensor]
    own_head: Head | None = None


def evaluation_splits(inputs: CellInputs) -> tuple[EvaluationSplit, ...]:
    """Return all splits that a cell is scored on.

    On a track with base and new classes, there are three: the target's whole test split, scored among all classes; the
    images of the base classes, scored among the base classes; and likewise the images of the new classes.
    """
    splits = [evaluation_split(inputs, dataset) for dataset in inputs.cell.evaluate_on]
    if inputs.track.base_classes is not None:
        base, classes = inputs.adapted_classes, len(inputs.head_CD)
        groups = zip((range(base), range(base, classes)), inputs.track.class_groups, strict=True)
        splits += [evaluation_split(inputs, inputs.cell.dataset, group, name) for group, name in groups]
    return tuple(splits)


def evaluation_split(
    inputs: CellInputs, dataset: DatasetRef, group: range | None = None, name: str = ""
) -> EvaluationSplit:
    """Return the test split of a dataset; given a ``group`` of classes, only the images of these classes.

    If the support is drawn from the test split, the largest support is left out, so that every k is scored on the same
    images. If the protocol scores on a tenth of the target's training split, this tenth is returned.

    Args:
        name: the name of the scored images; by default the name of the dataset.
    """
    name, classes = name or dataset.name, range(len(inputs.head_CD)) if group is None else group
    if inputs.artifacts.validation_images is not None:
        return _validation_split(inputs, inputs.artifacts.validation_images, classes, name)
    features, device = inputs.artifacts.features_of(dataset), inputs.loaded.device
    images, frozen_ND = inputs.loaded.get(features.images), inputs.loaded.get(features)
    labels_N = target_labels(inputs, features.images)
    own_head = next((head for head in inputs.artifacts.own_heads if head.dataset == dataset), None)
    if own_head is not None:
        first = len(inputs.head_CD)
        classes = range(first, first + len(inputs.loaded.get(own_head)))
    left_out = inputs.artifacts.unscored if dataset == inputs.cell.dataset else None
    if group is None and left_out is None:
        return EvaluationSplit(
            dataset, name, classes, labels_N, None, images.batch,
            lambda start, stop: frozen_ND[start:stop].to(device, copy=True), own_head,
        )  # fmt: skip
    scored_N = (labels_N >= classes.start) & (labels_N < classes.stop)
    if left_out is not None:
        scored_N[torch.from_numpy(inputs.loaded.get(left_out).indices)] = False
    rows_N = scored_N.nonzero().flatten()
    return EvaluationSplit(
        dataset, name, classes, labels_N[rows_N], rows_N,
        lambda start, stop: torch.stack([images.image(row) for row in rows_N[start:stop].tolist()]),
        lambda start, stop: frozen_ND[rows_N[start:stop]].to(device),
    )  # fmt: skip


def target_labels(inputs: CellInputs, images: Images) -> Tensor:
    """Return the labels of a dataset's test split as class numbers of the cell's target, (N,).

    If the dataset is scored with its own class names, its classes are numbered after the target's classes.
    A class of a variant of the target (ImageNet-A of ImageNet) gets the number of the target's class of the same name.
    Raises ``UserError`` if a variant has a class that the target lacks.
    """
    labels = torch.from_numpy(inputs.loaded.get(images).labels)
    target = inputs.artifacts.head.images
    if images == target:
        return labels
    if any(head.dataset == images.dataset for head in inputs.artifacts.own_heads):
        return labels + len(inputs.head_CD)
    names = images.class_names(inputs.loaded)
    numbers = class_numbers(names, target.class_names(inputs.loaded))
    if unknown := [name for name, number in zip(names, numbers, strict=True) if number is None]:
        variant, of = images.dataset.name, target.dataset.name
        raise UserError(f"{variant} has classes that {of} does not have: {', '.join(unknown[:5])}")
    return torch.tensor(numbers)[labels]


def class_numbers(names: Sequence[str], target_names: Sequence[str]) -> list[int | None]:
    """Return the position of each name in ``target_names``; ``None`` for a name that is not there.

    Classes can have equal names, such as the two classes ``missile`` of ImageNet. The first of them gets the position
    of the first such name in ``target_names``, and the second gets the position of the second.
    """
    positions = grouped(reversed(range(len(target_names))), target_names.__getitem__)
    return [positions[name].pop() if positions.get(name) else None for name in names]


def _validation_split(inputs: CellInputs, validation: Images, classes: range, name: str) -> EvaluationSplit:
    """Return the tenth of the training split on which the authors of BOLT score their meta-learned start."""
    images, backbone, size = inputs.loaded.get(validation), inputs.backbone, inputs.image_size
    rows_N = validation_tenth(len(images))

    def pixels(start: int, stop: int) -> Tensor:
        return images.evaluation_views(rows_N[start:stop].tolist(), size)

    return EvaluationSplit(
        validation.dataset, name, classes, torch.from_numpy(images.labels[rows_N]), torch.from_numpy(rows_N), pixels,
        lambda start, stop: backbone.encode_images(pixels(start, stop)),
    )  # fmt: skip
