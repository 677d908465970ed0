"""Loads a model from a folder that :mod:`bolt.model.saving` wrote, in any form."""

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.checkpoint_files import files_digest
from bolt.clip.checkpoint_reading import looks_like
from bolt.clip.huggingface import from_huggingface
from bolt.clip.input_size import LARGEST_NORM, Interpolation, Resize
from bolt.clip.precision import plain_torch
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower import ImageTower, replace_tensors
from bolt.clip.tower_shape import TowerShape
from bolt.model.model import Model
from bolt.model.saving import ADAPTER, CLASSIFIER, FORMAT, FORMS, HUGGINGFACE_WEIGHTS, INDEX, VISUAL, About
from bolt.spectral.bases import Basis
from bolt.spectral.sources import BasisRecipe, SelectedSources, Sources
from bolt.spectral.spectral_change import BasisMismatch, SpectralChange, rebuild_change
from bolt.task.classifiers import Classifier, UnknownClassifier, build_classifier
from bolt.util.json_text import read_json


class UnreadableModel(ValueError):
    """A folder holds no complete model, or :func:`load_model` lacks an argument that the model's form needs."""


class BackboneMismatch(ValueError):
    """The model was adapted from another backbone than the given backbone."""


@plain_torch()
def load_model(
    folder: Path | str,
    backbone: Backbone | None = None,
    sources: Sources | None = None,
    device: torch.device | str = "cpu",
) -> Model:
    """Load a saved model of any form.

    Args:
        folder: a folder written by :func:`bolt.model.saving.save`.
        backbone: the CLIP that the model was adapted from. The form ``adapter`` needs it. If the tower is timm's, every
            form needs it.
        sources: the source models from which the model's basis was built. They are needed if an ``adapter`` holds
            coefficients without the basis.
        device: device of the model; if a backbone is given, its device is used instead.

    Raises:
        TypeError: if ``backbone`` is no backbone.
        UnreadableModel: if a file is missing, damaged or of another format version, or a required argument is missing.
        BackboneMismatch: if the model was adapted from another backbone; the message has both digests.
        bolt.spectral.spectral_change.BasisMismatch: if the basis was built from other sources.
    """
    if not isinstance(backbone, Backbone | None):
        raise TypeError(f"backbone is made by bolt.load_backbone, not {backbone!r}; a device is given as device=...")
    folder = Path(os.path.expanduser(folder))
    index = read_index(folder)
    try:
        about = _about(index, folder)
        if backbone is not None and backbone.digest != about.backbone_digest:
            raise BackboneMismatch(
                f"{folder} was adapted from {about.backbone} with the digest {about.backbone_digest}, and the backbone "
                f"given is {backbone.name} with the digest {backbone.digest}"
            )
        device = backbone.device if backbone else device
        for name, digest in index["files"].items():
            if not (folder / name).is_file():
                raise UnreadableModel(f"{folder} is not a complete model: {name} is missing")
            if files_digest([folder / name]) != digest:
                with open(folder / name, "rb") as stream:
                    start = stream.read(256)
                hint = "" if start[8:9] == b"{" else looks_like(start)
                raise UnreadableModel(f"{folder / name} was changed or damaged: its checksum differs{hint}")
        if index["form"] == "adapter":
            return _read_adapter(folder, index, about, backbone, sources)
        classifier = _classifier(index, _aligned_copies(folder / CLASSIFIER, device))
        tower = _read_tower(folder, index, backbone, device)
        tower.precision = backbone.precision if backbone else None
        return Model(tower, classifier, about, backbone.tower if backbone else None)
    except (UnreadableModel, BackboneMismatch, BasisMismatch):
        raise
    except (KeyError, TypeError, ValueError, SafetensorError, UnknownClassifier, TensorMismatch) as error:
        raise UnreadableModel(f"{folder} is not a complete model: {type(error).__name__} {error}") from error


def read_index(folder: Path) -> dict[str, Any]:
    """Read ``bolt.json``. Raises ``UnreadableModel`` if it is missing, damaged or of another version."""
    try:
        index = read_json(folder / INDEX)
        version, form = index["format"], index["form"]
    except FileNotFoundError:
        raise UnreadableModel(f"{folder} holds no saved model: it has no {INDEX}") from None
    except NotADirectoryError:
        raise UnreadableModel(f"{folder} is a file: give the folder of a saved model, unpacked") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableModel(f"{folder / INDEX} cannot be read: {error}") from None
    if version != FORMAT or form not in FORMS:
        raise UnreadableModel(f"{folder / INDEX} has format {version}, form {form}; this version reads format {FORMAT}")
    return dict(index)


def _about(index: Mapping[str, Any], folder: Path) -> About:
    """Return the metadata of a model. Raises ``UnreadableModel`` for values that would give wrong predictions."""
    stated = dict(index["about"])
    listed = {name: tuple(stated[name]) for name in ("class_names", "mean", "std")}
    listed |= {name: tuple(stated[name]) for name in ("bands", "range") if stated.get(name)}
    about = About(**{field.name: stated[field.name] for field in fields(About) if field.name in stated} | listed)
    _ = about.reading
    numbers = {name: isinstance(stated[name], list) and len(stated[name]) == 3 for name in ("mean", "std")}
    can_be = {
        "class_names": isinstance(stated["class_names"], list) and all(type(name) is str for name in about.class_names),
        "mean": numbers["mean"] and all(abs(value) < LARGEST_NORM for value in about.mean),
        "std": numbers["std"] and all(0 < value < LARGEST_NORM for value in about.std),
        "resize": about.resize in get_args(Resize),
        "interpolation": about.interpolation in get_args(Interpolation),
        "notes": isinstance(about.notes, Mapping),
    }
    if wrong := next((name for name, right in can_be.items() if not right), None):
        raise UnreadableModel(f"{folder / INDEX} was edited or damaged: {wrong} cannot be {stated[wrong]!r}")
    return about


def _classifier(index: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Classifier:
    numbers = {name: float(value) for name, value in index["classifier"]["numbers"].items()}
    return build_classifier(index["classifier"]["kind"], tensors, numbers)


def _read_tower(
    folder: Path, index: Mapping[str, Any], backbone: Backbone | None, device: torch.device | str
) -> ImageTower:
    if index["form"] == "huggingface":
        tensors = from_huggingface(_aligned_copies(folder / HUGGINGFACE_WEIGHTS, device))
    else:
        tensors = _aligned_copies(folder / VISUAL, device)
    if any(name.startswith("trunk.") for name in tensors):
        if backbone is None:
            raise UnreadableModel(f"{folder} holds a tower of timm: pass the backbone that the model was adapted from")
        return replace_tensors(backbone.tower, tensors)
    return ImageTower.from_tensors(TowerShape(**index["tower"]), tensors)


def _read_adapter(
    folder: Path, index: Mapping[str, Any], about: About, backbone: Backbone | None, sources: Sources | None
) -> Model:
    if backbone is None:
        raise UnreadableModel(
            f"{folder} holds an adapter: pass the backbone that the model was adapted from, {about.backbone} with the "
            f"digest {about.backbone_digest}"
        )
    frozen = backbone.tower
    groups = _group_by_prefix(_aligned_copies(folder / ADAPTER, backbone.device))
    classifier = _classifier(index, groups["classifier"])
    changed = groups.get("tower", {})
    tower = replace_tensors(frozen, changed) if changed else frozen
    change = None
    if "basis" in index:
        change = _spectral_change(folder, index["basis"], groups, sources, frozen)
        tower = change.apply_to(tower)
    return Model(tower, classifier, about, frozen, change)


def _spectral_change(
    folder: Path,
    basis: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Tensor]],
    sources: Sources | None,
    frozen: ImageTower,
) -> SpectralChange:
    coefficients, recipe = groups["coefficients"], BasisRecipe(**basis["recipe"])
    saved, digests = tuple(basis["sources"]), tuple(basis.get("digests", ()))  # older models have no digests
    if basis["included"]:
        bases = {name: Basis(groups["u"][name], groups["v"][name]) for name in coefficients}
        return SpectralChange(coefficients, bases, recipe, saved, digests)
    if sources is None:
        raise UnreadableModel(
            f"{folder} holds coefficients without their basis, which is built from source models: pass "
            f"{', '.join(saved)} as sources, or save the model with its basis"
        )
    fitting = _fitting_sources(sources, saved, digests)
    try:
        change = rebuild_change(coefficients, groups["probe"], recipe, fitting, frozen.state_dict_open_clip())
    except BasisMismatch as error:
        raise BasisMismatch(f"{error}: {', '.join(saved)}") from None
    return replace(change, sources=saved, digests=digests)


def _fitting_sources(sources: Sources, saved: tuple[str, ...], digests: tuple[str, ...]) -> Sources:
    """Return the source models of a saved basis, in the order of the basis.

    The source models are found by the digests of their files. If no digests are saved or one of them is not found, the
    names decide. If a name is not found either, return ``sources`` unchanged, because they may still be the right ones:
    their files may have been renamed and written in another format.
    """
    for wanted, found in ((digests, sources.file_digests()), (saved, sources.names)):
        if wanted and set(wanted) <= set(found):
            return SelectedSources(sources, [found.index(each) for each in wanted])
    return sources


def _aligned_copies(file: Path, device: torch.device | str) -> dict[str, Tensor]:
    """Read the tensors of a file into new memory.

    Tensors that are mapped from a file may be unaligned, and matrix-vector products can then differ in the last bits.
    """
    return {name: tensor.clone().to(device) for name, tensor in load_file(file).items()}


def _group_by_prefix(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups
