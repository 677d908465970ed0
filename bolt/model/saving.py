"""A model on disk: safetensors and one JSON file, in one of three forms. No pickle is written or read.

``adapter``
    the classifier and the tower's change in its smallest form (:mod:`bolt.spectral.spectral_change`): it needs its
    backbone, and coefficients without their basis need the source models. ``bolt.json``, ``adapter.safetensors``.
``state_dict``
    the whole image tower by open_clip's visual names, and the classifier: it needs nothing. ``bolt.json``,
    ``visual.safetensors``, ``classifier.safetensors``.
``huggingface``
    the tower as a ``CLIPVisionModelWithProjection`` of transformers, and the classifier: it needs nothing.
    ``bolt.json``, ``config.json``, ``preprocessor_config.json``, ``model.safetensors``, ``classifier.safetensors``.

``bolt.json`` says the format's version, the class names, the preprocessing, the backbone with its digest, and the
checksum of every other file. It is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save as save_bytes
from torch import Tensor

from bolt.clip.huggingface import config_from_shape, to_huggingface
from bolt.clip.tensor_files import save_tensors
from bolt.model.parts import ModelParts
from bolt.spectral.spectral_linear import NonFiniteTensor

Form = Literal["adapter", "state_dict", "huggingface"]
FORMS: tuple[Form, ...] = get_args(Form)

FORMAT = 1
"""Version of the files' layout. A reader refuses one that it does not know."""

INDEX = "bolt.json"
ADAPTER = "adapter.safetensors"
VISUAL = "visual.safetensors"
CLASSIFIER = "classifier.safetensors"
HUGGINGFACE_WEIGHTS = "model.safetensors"
_BICUBIC = 3
"""Pillow's number of the filter."""


def save(model: ModelParts, folder: Path | str, form: Form = "adapter", *, with_basis: bool = False) -> None:
    """Write a model into a folder that is not there yet, whole or not at all.

    Args:
        with_basis: an adapter's coefficients with their basis, so that no source model is needed to read it.

    Raises:
        bolt.spectral.spectral_linear.NonFiniteTensor: for NaN or infinite entries; nothing is written.
        FileExistsError: when something is there already.
        ValueError: for a form that does not exist, or an adapter of a model whose backbone is not known.
    """
    if form not in FORMS:
        raise ValueError(f"a model is saved as {', '.join(FORMS)}, not as {form!r}")
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} is there already and not empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        body = _WRITERS[form](model, scratch, with_basis)
        digests = {path.name: file_digest(path) for path in sorted(scratch.iterdir())}
        (scratch / INDEX).write_text(_index(model, form, body, digests), encoding="utf-8")
        scratch.chmod(0o755)
        os.replace(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def adapter_files(model: ModelParts, most_bytes: int | None = None) -> dict[str, bytes] | None:
    """The files of a model's ``adapter`` form without basis, the index last; for whoever keeps them elsewhere.

    ``None`` where the tensors together exceed ``most_bytes``. Raises as :func:`save`.
    """
    tensors, body = _adapter(model, with_basis=False)
    if most_bytes is not None and sum(tensor.nbytes for tensor in tensors.values()) > most_bytes:
        return None
    content = save_bytes(_packed(tensors))
    index = _index(model, "adapter", body, {ADAPTER: hashlib.sha256(content).hexdigest()})
    return {ADAPTER: content, INDEX: index.encode()}


def _index(model: ModelParts, form: Form, body: Mapping[str, Any], files: Mapping[str, str]) -> str:
    content = {
        "format": FORMAT,
        "form": form,
        "about": asdict(model.about),
        "tower": asdict(model.tower.shape),
        "classifier": {"kind": model.classifier.kind, "numbers": model.classifier.numbers()},
        **body,
        "files": files,
    }
    return json.dumps(content, indent=1)


def _adapter(model: ModelParts, with_basis: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an adapter by their stored names, and what the index says of them."""
    tensors = _prefixed("classifier", model.classifier.tensors()) | _prefixed("tower", model.changed_tensors())
    if model.change is None:
        return tensors, {}
    tensors |= _prefixed("coefficients", model.change.coefficients) | _prefixed("probe", model.change.probes())
    if with_basis:
        tensors |= _prefixed("u", {name: basis.u for name, basis in model.change.bases.items()})
        tensors |= _prefixed("v", {name: basis.v for name, basis in model.change.bases.items()})
    basis = {"recipe": asdict(model.change.recipe), "sources": list(model.change.sources), "included": with_basis}
    return tensors, {"basis": basis}


def _write_adapter(model: ModelParts, folder: Path, with_basis: bool) -> dict[str, Any]:
    tensors, body = _adapter(model, with_basis)
    save_tensors(_packed(tensors), folder / ADAPTER)
    return body


def _write_state_dict(model: ModelParts, folder: Path, with_basis: bool) -> dict[str, Any]:
    save_tensors(_packed(model.tower.state_dict_open_clip()), folder / VISUAL)
    save_tensors(_packed(model.classifier.tensors()), folder / CLASSIFIER)
    return {}


def _write_huggingface(model: ModelParts, folder: Path, with_basis: bool) -> dict[str, Any]:
    tensors = to_huggingface(model.tower.state_dict_open_clip())
    save_tensors(_packed(tensors), folder / HUGGINGFACE_WEIGHTS, metadata={"format": "pt"})
    save_tensors(_packed(model.classifier.tensors()), folder / CLASSIFIER)
    for name, content in {
        "config.json": config_from_shape(model.tower.shape),
        "preprocessor_config.json": _preprocessor(model),
    }.items():
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return {}


_WRITERS: Mapping[Form, Callable[[ModelParts, Path, bool], dict[str, Any]]] = {
    "adapter": _write_adapter,
    "state_dict": _write_state_dict,
    "huggingface": _write_huggingface,
}


def _preprocessor(model: ModelParts) -> dict[str, Any]:
    """The evaluation transform as transformers' image processor of CLIP states it."""
    size = model.tower.shape.image_size
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": size},
        "resample": _BICUBIC,
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(model.about.mean),
        "image_std": list(model.about.std),
    }


def _packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU that share no memory, as safetensors wants them. Raises ``NonFiniteTensor`` naming a tensor."""
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise NonFiniteTensor(f"{name} has NaN or infinite entries; the model is not written")
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _prefixed(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{group}/{name}": tensor for name, tensor in tensors.items()}


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
