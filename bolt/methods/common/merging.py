"""Model merging: the pre-trained tower plus a multiple of an update that is computed from the sources' task vectors.

An update is a mapping from open_clip's tensor names to tensors in open_clip's orientation.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from bolt.clip.tensor_names import PROJECTION
from bolt.clip.tower import ImageTower
from bolt.methods.base import Method, TowerPasses, registering
from bolt.methods.common.scale_selection import choose_scale, images_scored
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task
from bolt.util.ranges import NOT_EMPTY, Checked


def required_sources(task: Task) -> Sources:
    """Return the task's sources. Raises ``ValueError`` if the task has no sources."""
    if task.sources is None or not task.sources.names:
        raise ValueError("this method needs the sources' task vectors, but this task has no sources")
    return task.sources


def mean_task_vectors(sources: Sources, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the sources' mean task vector of each named tensor. Raises ``ValueError`` if a mean is not finite."""
    update = {name: sources.mean_task_vector(name) for name in names}
    for name, tensor in update.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"a task vector has NaN or infinite entries in {name}")
    return update


def with_update(tower: ImageTower, update: Mapping[str, Tensor], scale: float = 1.0) -> ImageTower:
    """Return a frozen copy of the tower, with ``scale`` times the update added to it.

    Tensors that ``update`` does not name are shared with the tower.
    """
    copy = tower.copy(update)
    own = copy.own_tensors()
    for name, tensor in update.items():
        own[name].add_((tensor.T if name == PROJECTION else tensor).to(own[name]), alpha=scale)
    return copy.requires_grad_(False)


@dataclass(frozen=True)
class MergingSettings(Checked):
    """The settings that all merging methods have.

    Attributes:
        alphas: candidate scales. The scale that is most accurate on the support is used; ties go to the smallest. The
            default, 0.1 to 3 in steps of 0.1, is the official grid of Iso-C and TSV-M.
    """

    alphas: Annotated[tuple[float, ...], NOT_EMPTY] = tuple(step / 10 for step in range(1, 31))


def add_update(
    task: Task, settings: MergingSettings, update: Callable[[Task, Sources, Any], Mapping[str, Tensor]]
) -> Adapted:
    """Add an update to the frozen tower, with the scale that is most accurate on the support (at a tie, the smallest).

    Args:
        task: the task. Without sources, ``ValueError`` is raised.
        settings: the settings of the method, which are given to ``update``.
        update: ``update(task, sources, settings)`` -> the update. It may depend on the sources, the frozen tower and
            the settings only.
    """
    base, sources = task.backbone.tower, required_sources(task)

    def on_device() -> dict[str, Tensor]:
        return {name: tensor.to(task.backbone.device) for name, tensor in update(task, sources, settings).items()}

    made = sources.cached((update, settings), on_device)
    choice = choose_scale(task, settings.alphas, lambda scale: with_update(base, made, scale))
    tower, key = with_update(base, made, choice.scale), (update, settings, sources.names, choice.scale)
    return Adapted(task.text_head, tower, details=choice.details, source_key=key)


register_merging = registering(
    Method,
    tracks=frozenset({"fewshot", "ood"}),
    uses_sources=True,
    changes_tower=True,
    names_new_classes=True,
    tower_passes=lambda support_size, settings: TowerPasses(forward=images_scored(settings.alphas, support_size)),
)
"""Registers a merging method. The fields above are the defaults of merging methods."""
