"""Zero-shot CLIP: the frozen image tower and the text head; no image of the target is read (Radford et al., 2021)."""

from dataclasses import dataclass

from bolt.methods.base import register
from bolt.task.task import Adapted, Task


@dataclass(frozen=True)
class ZeroShotSettings:
    """Zero-shot CLIP has no settings."""


@register(
    title="Zero-shot CLIP",
    summary="classifies by the text embeddings of the class names alone",
    paper="https://arxiv.org/abs/2103.00020",
    tracks=frozenset({"fewshot", "ood", "tta", "tta_stream", "tta_image", "meta"}),
    uses_support=False,
    names_new_classes=True,
)
def adapt(task: Task, settings: ZeroShotSettings) -> Adapted:
    """Return the text head as the classifier."""
    return Adapted(classify=task.text_head)
