"""Converts the image tower in a checkpoint of another project to open_clip's tensor names.

The layout is recognised by the name of the class embedding, which every layout has exactly once:

- an open_clip image tower (``class_embedding``);
- a whole open_clip or OpenAI CLIP (``visual.class_embedding``);
- an image encoder of a task-vector repository (``model.visual.class_embedding``, sometimes under ``image_encoder.``,
  with parts of the text tower);
- a CLIP of Hugging Face (``vision_model.embeddings.class_embedding``).

Each may have the prefix ``module.`` of a data-parallel wrapper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.clip.huggingface import VISUAL_PROJECTION, from_huggingface
from bolt.clip.tensor_names import PROJECTION, TensorMismatch, check_tensors
from bolt.clip.tower import ImageTower

CONVERSION_VERSION = 1
"""Increased whenever the conversion of the same file gives different numbers."""

_CLASS_EMBEDDING = "class_embedding"
_HUGGINGFACE_CLASS_EMBEDDING = "embeddings.class_embedding"


@dataclass(frozen=True)
class ConvertedTower:
    """The result of :func:`convert_image_tower`.

    Attributes:
        tensors: float32 on the CPU, by open_clip's visual names, in the tower's order.
        layout: description of the checkpoint's layout.
        notes: what the conversion left out, took from the frozen tower, or converted to float32.
    """

    tensors: dict[str, Tensor]
    layout: str
    notes: tuple[str, ...]


def convert_image_tower(tensors: Mapping[str, Tensor], frozen: ImageTower | Mapping[str, Tensor]) -> ConvertedTower:
    """Extract the image tower from a checkpoint of any known layout, and check it against the frozen tower.

    Args:
        tensors: the result of :func:`bolt.clip.checkpoint_reading.read_tensors`.
        frozen: the pre-trained tower, or its tensors by open_clip's visual names. ``proj`` is taken from it for a
            Hugging Face vision model without a projection.

    Raises:
        TensorMismatch: if no image tower is found, or several; if tensors are missing, unexpected or of the wrong shape
            (the first of each are listed); if values are NaN, infinite or quantised; or if the tensors are a task
            vector.
    """
    state = frozen.state_dict_open_clip() if isinstance(frozen, ImageTower) else dict(frozen)
    prefix, huggingface = _locate_tower(tensors)
    notes: list[str] = []
    if huggingface:
        inner = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        converted = from_huggingface(inner)
        layout = "Hugging Face CLIP" if VISUAL_PROJECTION in inner else "Hugging Face CLIP vision model"
        if PROJECTION not in converted:
            converted[PROJECTION] = state[PROJECTION].detach().cpu()
            notes.append("it has no projection; the pre-trained one is used")
    else:
        converted = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        layout = _layout(prefix)
        outside = len(tensors) - len(converted)
        if outside:
            notes.append(f"{outside} tensors outside the image tower were left out")
    check_tensors(converted, {name: tuple(tensor.shape) for name, tensor in state.items()})
    _check_values(converted, state)
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in converted.values()} - {"float32"})
    if kinds:
        notes.append(f"{' and '.join(kinds)} numbers were converted to float32")
    # Copied, so that the result needs no memory-mapped file and shares no memory with the frozen tower.
    ordered = {
        name: converted[name].detach().to("cpu", torch.float32, copy=True, memory_format=torch.contiguous_format)
        for name in state
    }
    return ConvertedTower(ordered, layout, tuple(notes))


def _locate_tower(tensors: Mapping[str, Tensor]) -> tuple[str, bool]:
    """Return the prefix of the image tower's tensor names, and whether they are Hugging Face's."""
    found = [name for name in tensors if name == _CLASS_EMBEDDING or name.endswith(f".{_CLASS_EMBEDDING}")]
    if len(found) > 1:
        raise TensorMismatch(f"several image towers in one checkpoint ({', '.join(found[:3])}): save one of them alone")
    if not found:
        some = ", ".join(sorted(tensors)[:3]) or "no tensor at all"
        raise TensorMismatch(
            f"no image tower of a CLIP was found: no tensor is called {_CLASS_EMBEDDING!r}; the first names are {some}"
        )
    class_embedding = found[0]
    if class_embedding.endswith(_HUGGINGFACE_CLASS_EMBEDDING):
        return class_embedding.removesuffix(_HUGGINGFACE_CLASS_EMBEDDING).removesuffix("vision_model."), True
    return class_embedding.removesuffix(_CLASS_EMBEDDING), False


def _layout(prefix: str) -> str:
    inner = prefix.removeprefix("module.")
    if inner in ("", "visual."):
        return "open_clip CLIP" if inner else "open_clip image tower"
    if inner.endswith("visual."):
        return "image encoder of a task-vector repository"
    return f"open_clip image tower under {prefix!r}"


def _check_values(tensors: Mapping[str, Tensor], frozen: Mapping[str, Tensor]) -> None:
    """Raise ``TensorMismatch`` for quantised, NaN or infinite weights, and for a task vector."""
    integers = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if integers:
        kind = str(tensors[integers[0]].dtype).removeprefix("torch.")
        raise TensorMismatch(f"{integers[0]} holds {kind} numbers: quantised weights cannot be used")
    not_finite = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if not_finite:
        more = f" and {len(not_finite) - 1} more" if len(not_finite) > 1 else ""
        raise TensorMismatch(f"NaN or infinity in {not_finite[0]}{more}")
    gains = [name for name in frozen if name.rpartition(".")[0].rpartition(".")[2].startswith("ln_")]
    gains = [name for name in gains if name.endswith(".weight")]
    # Fine-tuning changes layer norm weights by a few per cent, so those of a task vector are close to zero.
    if all(tensors[name].float().norm() < 0.2 * frozen[name].cpu().float().norm() for name in gains):
        raise TensorMismatch(
            "the weights of every layer norm are near zero: this is a task vector (the difference of two towers), "
            "not a tower; add the pre-trained weights before saving"
        )
