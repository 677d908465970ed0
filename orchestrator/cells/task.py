"""Makes the task of a cell, which holds everything that the cell's method may see."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bolt.seeds import torch_generator
from bolt.task.support import batch_order, draw_support, draw_validation
from bolt.task.task import EVALUATION_VIEW, Adapted, Support, Task, Unlabelled
from orchestrator.artifacts.support_images import support_pool
from orchestrator.artifacts.views import place_images
from orchestrator.cells.evaluation import evaluate
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.splits import evaluation_split

_OVERLAP = 0.2
"""Length of the time window in which the images of one class come in a drifting stream. The windows of all classes
start between the times 0 and 1; see :func:`drifting_order`."""


def make_task(inputs: CellInputs) -> Task:
    """Return the task of a cell. Its large parts are read when they are first used.

    A task has no test labels. Under a protocol that ``selects_on_test``, it has an oracle, which returns the test
    accuracy of a classifier.

    Raises ``ValueError`` if the cell asks for another version of the method, ``FileNotFoundError`` for an artifact that
    is not built, and :class:`bolt.task.support.TooFewImages` if a class has too few images for the protocol.
    """
    cell, method, artifacts, loaded = inputs.cell, inputs.method, inputs.artifacts, inputs.loaded
    if method.version != cell.method.version:
        wanted = cell.method.version
        raise ValueError(f"the cell asks for version {wanted} of {method.name}, but this is version {method.version}")
    text = None
    if method.trains_text(inputs.settings):
        words = inputs.artifacts.head.class_text(loaded)
        text = replace(words, class_names=words.class_names[: inputs.adapted_classes])
    return Task(
        backbone=inputs.backbone,
        head_CD=inputs.head_CD[: inputs.adapted_classes].clone(),  # a method may train it in place
        support=_support(inputs),
        sources=inputs.sources,
        protocol=cell.protocol,
        dataset=cell.dataset.name,
        seed=cell.seed,
        unlabelled=_unlabelled(inputs),
        oracle=_oracle(inputs) if cell.selects_on_test else None,
        initial=loaded.get(artifacts.meta_start) if artifacts.meta_start else None,
        validation=_validation(inputs),
        text=text,
    )


def _oracle(inputs: CellInputs) -> Callable[[Adapted], float]:
    """Return a function that measures accuracy on the test images of the classes that the method is adapted to."""
    count = inputs.adapted_classes
    group = None if count == len(inputs.head_CD) else range(count)

    def oracle(adapted: Adapted) -> float:
        return evaluate(inputs, evaluation_split(inputs, inputs.cell.dataset, group), adapted).evaluation.accuracy

    return oracle


def _support(inputs: CellInputs) -> Support:
    """Return the labelled images of the classes that the method is adapted to; empty if the method gets none."""
    cell, artifacts, loaded = inputs.cell, inputs.artifacts, inputs.loaded
    if artifacts.support_images is None:
        empty = torch.empty(0, dtype=torch.int64)
        return Support(empty, empty, pixels=_undeclared, features=_undeclared, order=_undeclared)
    size, name = inputs.image_size, cell.dataset.name
    pool = support_pool(artifacts.support_images, loaded)
    if cell.listed is not None:
        listed = pool.listed["train"]
        indices = listed[pool.labels_of_split[listed] < inputs.adapted_classes]
    else:
        indices = draw_support(
            pool.labels_of_split,
            cell.shots,
            dataset=name,
            seed=cell.seed,
            short_classes=cell.protocol.short_classes,
            class_count=inputs.adapted_classes,
            draw=inputs.track.support_draw(cell.protocol),
            pool=cell.protocol.support_pool,
            validation_labels=pool.labels_of_validation,
        )

    def features(view: int) -> Tensor:
        if artifacts.support_features is None:
            return _undeclared()
        stored = loaded.get(artifacts.support_features)
        rows = torch.searchsorted(stored["indices_N"], torch.from_numpy(indices))
        return stored["features_VND"][view, rows].to(loaded.device)

    return Support(
        labels_N=torch.from_numpy(pool.labels_of_split[indices]).to(loaded.device),
        indices_N=torch.from_numpy(indices),
        pixels=lambda view, rows: pool.pixels(view, indices[rows.cpu().numpy()], size, artifacts.views),
        features=features,
        order=lambda epoch: batch_order(len(indices), dataset=name, seed=cell.seed, epoch=epoch),
    )


def _validation(inputs: CellInputs) -> Support | None:
    """Return the validation images of the classes that the method is adapted to; ``None`` if the method gets none."""
    cell, artifacts, loaded = inputs.cell, inputs.artifacts, inputs.loaded
    if artifacts.validation_features is None or artifacts.support_images is None:
        return None
    labels_V = loaded.get(artifacts.validation_features.images).labels
    chosen = np.arange(len(labels_V))
    if cell.protocol.validation == "drawn":
        pool, draw = loaded.get(artifacts.support_images), inputs.track.support_draw(cell.protocol)
        name, seed = cell.dataset.name, cell.seed
        chosen = (
            pool.listed["val"]
            if "val" in pool.listed
            else draw_validation(labels_V, pool.labels_of_split, cell.shots, dataset=name, seed=seed, draw=draw)
        )
    chosen = chosen[labels_V[chosen] < inputs.adapted_classes]
    features_VD = loaded.get(artifacts.validation_features)
    return Support(
        labels_N=torch.from_numpy(labels_V[chosen]).to(loaded.device),
        indices_N=torch.from_numpy(chosen),
        pixels=_undeclared,
        features=lambda view: features_VD[torch.from_numpy(chosen)].to(loaded.device),
        order=_undeclared,
    )


def _undeclared(*arguments: Any) -> Tensor:
    """Raise ``ValueError``, because the method reads an input that it did not declare."""
    raise ValueError("the method reads an input that its registration does not declare")


def _unlabelled(inputs: CellInputs) -> Unlabelled | None:
    """Return the target's test images without labels; ``None`` if the method gets a support or uses no images.

    View 0 of an image is the evaluation view, at the tower's input size. The other views are random crops. They are cut
    from the artifact ``whole_test_images``, in which large images are scaled down and others keep their size.
    """
    artifacts, loaded = inputs.artifacts, inputs.loaded
    if inputs.track.gives_support or not inputs.method.uses_support:
        return None
    name, seed, size = inputs.cell.dataset.name, inputs.cell.seed, inputs.image_size
    test_features = inputs.artifacts.features_of(inputs.cell.dataset)
    images = loaded.get(test_features.images)

    def pixels(view: int, rows: Tensor) -> Tensor:
        if view == EVALUATION_VIEW:
            return torch.stack([images.image(row) for row in rows.tolist()])
        if artifacts.whole_test_images is None:
            return _undeclared()
        whole = place_images(artifacts.whole_test_images, loaded.get(artifacts.whole_test_images), loaded)
        return artifacts.views.draw(whole, rows.tolist(), view, size=size.side, dataset=name, seed=seed)

    def order(stream: str, number: int, count: int) -> Tensor:
        generator = torch_generator("stream", name, seed, stream, number, count)
        if inputs.cell.protocol.stream == "drifting" and count == len(images):
            return drifting_order(torch.from_numpy(images.labels), generator)
        return torch.randperm(count, generator=generator)

    def view_features(count: int) -> Tensor:
        if artifacts.view_features is None:
            return _undeclared()
        return loaded.get(artifacts.view_features)[:, :count].to(loaded.device)

    return Unlabelled(
        size=len(images),
        pixels=pixels,
        features=lambda: loaded.get(test_features).to(loaded.device, copy=True),
        order=order,
        view_features=view_features,
    )


def drifting_order(labels_N: Tensor, generator: torch.Generator) -> Tensor:
    """Return an order of the images, (N,), in which the classes come one after another, in random order.

    Each image gets a random time in the window of its class, and the images are sorted by time. A window has the length
    ``_OVERLAP``, and the windows of C classes begin 1 / C apart. So with many classes, images of about a fifth of them
    are mixed at any time. The method sees the order of the images, but no labels.
    """
    classes = int(labels_N.max()) + 1
    start_C = torch.randperm(classes, generator=generator) / classes
    return (start_C[labels_N] + _OVERLAP * torch.rand(len(labels_N), generator=generator)).argsort()
