"""Converts the image tower in a checkpoint of another project to open_clip's tensor names.

The name of one tensor, which occurs once in a tower, identifies the layout:

- ``class_embedding``: an open_clip image tower;
- ``visual.class_embedding``: a whole CLIP of open_clip or OpenAI, or a part that includes the image tower;
- ``vision_model.embeddings.class_embedding``: a CLIP of Hugging Face;
- ``vision_model.head.probe``: a SigLIP of Hugging Face.

Names may have a prefix, such as ``model.``, ``image_encoder.`` or ``state_dict.``.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.clip.checkpoint_reading import Checkpoint
from bolt.clip.huggingface import VISION, VISUAL_PROJECTION, from_huggingface
from bolt.clip.lora import adapter_kind, holds_lora, merge_lora
from bolt.clip.siglip import PROBE, siglip_from_huggingface
from bolt.clip.tensor_names import (
    PROJECTION,
    TensorMismatch,
    check_numbers,
    check_tensors,
    holds_again,
    layer_norm_names,
)
from bolt.clip.tower import ImageTower

CONVERSION_VERSION = 3
"""Version of the conversion. It must be increased when a change of the code gives other numbers for the same file."""

FAR = 0.5
"""Largest distance of a checkpoint from the pre-trained tower without a warning to the user.

The unit is the norm of the pre-trained tower. Fine-tuning moves a tower by a few per cent of this norm. Two towers from
different trainings are about 1.4 norms apart."""

_CLASS_EMBEDDING = "class_embedding"
_HUGGINGFACE_CLASS_EMBEDDING = "embeddings.class_embedding"
_AVERAGED = re.compile(r"(^|[._])(ema|swa|averaged?)([._]|\d|$)")
"""Pattern that matches a tensor's name if the tensor is part of a running average of the weights. Such names begin with
``state_dict_ema.`` or ``ema_model.``, for example."""


@dataclass(frozen=True)
class ConvertedTower:
    """The result of :func:`convert_image_tower`.

    Attributes:
        tensors: the tower's tensors in float32 on the CPU, by open_clip's names, in the tower's order.
        layout: description of the checkpoint's layout.
        notes: remarks on tensors that were left out, taken from the frozen tower, or converted to float32.
    """

    tensors: dict[str, Tensor]
    layout: str
    notes: tuple[str, ...]


def convert_image_tower(
    checkpoint: Checkpoint | Mapping[str, Tensor], frozen: ImageTower | Mapping[str, Tensor]
) -> ConvertedTower:
    """Extract the image tower from a checkpoint of any known layout, and check it against the frozen tower.

    Args:
        checkpoint: the result of :func:`bolt.clip.checkpoint_reading.read_checkpoint`, or tensors by name.
        frozen: the pre-trained tower, or its tensors by open_clip's names. A Hugging Face vision model without a
            projection gets the ``proj`` of this tower.

    Raises:
        TensorMismatch: if there is no image tower, or more than one; if tensors are missing, unexpected or of the wrong
            shape; if values are NaN, infinite or quantised; if the tensors are a task vector, or an adapter of another
            kind than LoRA; or if the scale or the matrices of a LoRA are unknown.
    """
    state = frozen.state_dict_open_clip() if isinstance(frozen, ImageTower) else dict(frozen)
    checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    tensors, notes = checkpoint.tensors, list[str]()
    tensors, is_siglip = _with_siglip(tensors)
    mark = _CLASS_EMBEDDING if _CLASS_EMBEDDING in state else next(iter(state))
    whole = any(f".{name}".endswith(f".{mark}") for name in tensors)  # a tower may lie beside settings of an adapter
    if holds_lora(tensors) or (adapter_kind(checkpoint.settings) != "LORA" and not whole):
        tensors, note = merge_lora(tensors, checkpoint.settings, state, whole)
        notes.append(note)
    prefix, copies = _locate_tower(tensors, mark, notes)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(copies)}
    if f"{prefix}{_HUGGINGFACE_CLASS_EMBEDDING}" in tensors:
        prefix = prefix.removesuffix("vision_model.")
        inner = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        if any(name.startswith(VISION) for name in inner):
            inner = {n: tensor for n, tensor in inner.items() if n.startswith(VISION) or n == VISUAL_PROJECTION}
        elsewhere = [tensors[name] for name in tensors if f".{name}".endswith(f".{VISUAL_PROJECTION}")]
        if VISUAL_PROJECTION not in inner and [each.shape for each in elsewhere] == [state[PROJECTION].T.shape]:
            inner[VISUAL_PROJECTION] = elsewhere[0]  # its prefix differs from that of the tower
        converted = from_huggingface(inner)
        layout = "Hugging Face CLIP" if VISUAL_PROJECTION in inner else "Hugging Face CLIP vision model"
        if PROJECTION not in converted:
            converted[PROJECTION] = state[PROJECTION].detach().cpu()
            notes.append("the checkpoint has no projection; the pre-trained projection is used")
    else:
        converted = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        inner = converted
        layout = "open_clip CLIP" if prefix.endswith("visual.") else "open_clip image tower"
        layout = "SigLIP of transformers" if is_siglip else layout
    if outside := len(tensors) - len(inner):
        notes.append(f"tensors outside the image tower that were left out: {outside}")
    check_tensors(converted, {name: tuple(tensor.shape) for name, tensor in state.items()})
    _check_values(converted, state)
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in converted.values()} - {"float32"})
    if kinds:
        notes.append(f"{' and '.join(kinds)} numbers were converted to float32")
    # Tensors are copied, so that they need neither the memory-mapped file nor the frozen tower any more.
    ordered = {
        name: converted[name].detach().to("cpu", torch.float32, copy=True, memory_format=torch.contiguous_format)
        for name in state
    }
    return ConvertedTower(ordered, layout, tuple(notes))


def distance_moved(tower: ConvertedTower, frozen: Mapping[str, Tensor]) -> float:
    """Return the distance of a tower from the pre-trained tower ``frozen``, divided by the norm of ``frozen``.

    Raises ``TensorMismatch`` if ``tower`` is the pre-trained tower itself, as it is or rounded to 16 or 8 bits.
    """
    if all(_rounds_to(tensor.cpu(), tower.tensors[name]) for name, tensor in frozen.items()):
        what = "this is the pre-trained tower itself, up to rounding to 16 or 8 bits, not a fine-tuned one"
        raise TensorMismatch("; ".join((what, *tower.notes)))
    moved = (tower.tensors[name] - tensor.cpu() for name, tensor in frozen.items())
    return math.sqrt(_squared_norm(moved) / _squared_norm(frozen.values()))


def _rounds_to(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, as they are or after rounding.

    Both are rounded to float16 or bfloat16, but only ``tensor`` to float8: this is so coarse that a fine-tuned tensor
    could round to the values of the pre-trained one.
    """
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    return any(torch.equal(tensor.to(kind), other.to(kind)) for kind in kinds) or any(
        torch.equal(tensor.to(kind).float(), other) for kind in (torch.float8_e4m3fn, torch.float8_e5m2)
    )


def _squared_norm(tensors: Iterable[Tensor]) -> float:
    return sum(tensor.double().square().sum().item() for tensor in tensors)


def _with_siglip(tensors: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], bool]:
    """Return the tensors, with a SigLIP image tower of transformers in open_clip's form, and whether there is one."""
    probe = PROBE.removeprefix(VISION)  # a SiglipVisionModel of transformers 5 has no prefix
    found = [name.removesuffix(probe) for name in tensors if f".{name}".endswith(f".{probe}")]
    if len(found) != 1:
        return tensors, False
    inner = {VISION + name.removeprefix(found[0]): each for name, each in tensors.items() if name.startswith(found[0])}
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(found[0])}
    return rest | siglip_from_huggingface(inner), True


def _locate_tower(tensors: Mapping[str, Tensor], mark: str, notes: list[str]) -> tuple[str, tuple[str, ...]]:
    """Return the prefix of the image tower's tensor names, and the prefixes of the running averages beside the tower.

    A running average is used as the tower only if the checkpoint holds no other tower. A tower may be there under two
    names, as a module stores it that holds it twice. ``mark``: the name of a tensor
    that occurs once in a tower. ``notes`` gets a remark on running averages.
    """
    found = [name for name in tensors if f".{name}".endswith(f".{mark}")]
    averaged = [name for name in found if _AVERAGED.search(name)]
    current = [name for name in found if name not in averaged]
    if not found:
        some = ", ".join(sorted(tensors)[:3]) or "no tensor at all"
        raise TensorMismatch(
            f"no image tower of a CLIP was found: no tensor is called {mark!r}; the first names are {some}"
        )
    chosen = current or averaged
    prefixes = [name.removesuffix(_HUGGINGFACE_CLASS_EMBEDDING).removesuffix(mark) for name in found]
    prefix, *others = (prefixes[found.index(name)] for name in chosen)
    if not holds_again(tensors, prefix, others):
        where = ", ".join(name.removesuffix(mark).rstrip(".") or "the names without prefix" for name in chosen)
        raise TensorMismatch(f"several image towers are in one checkpoint ({where}): save one of them alone")
    if averaged:
        copy = averaged[0].removesuffix(mark).rstrip(".")
        notes.append(
            f"there is also a running average (EMA) of the weights, under {copy}; to use it, save it alone"
            if current
            else f"these weights are a running average (EMA), under {copy}"
        )
    return prefix, tuple(other for other in prefixes if other != prefix)


def _check_values(tensors: Mapping[str, Tensor], frozen: Mapping[str, Tensor]) -> None:
    """Raise ``TensorMismatch`` for quantised, NaN or infinite weights, and for a task vector."""
    check_numbers(tensors, frozen)
    gains = [name for name in layer_norm_names(frozen) if name.endswith(".weight")]
    # Fine-tuning changes the weights of layer norms by a few per cent, so those of a task vector are near zero.
    if all(tensors[name].float().norm() < 0.2 * frozen[name].cpu().float().norm() for name in gains):
        raise TensorMismatch(
            "the weights of every layer norm are near zero: this is a task vector (the difference of two towers), "
            "not a tower; add the pre-trained weights before saving"
        )
