"""Loads a model that :mod:`bolt.model.saving` saved, in any of its forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.checkpoint_files import files_digest
from bolt.clip.huggingface import from_huggingface
from bolt.clip.tensor_names import DEEP_PROMPTS, TensorMismatch
from bolt.clip.tower import ImageTower
from bolt.clip.tower_changes import replace_tensors
from bolt.clip.tower_shape import TowerShape
from bolt.model.model import Model
from bolt.model.parts import About
from bolt.model.saving import ADAPTER, CLASSIFIER, FORMAT, FORMS, HUGGINGFACE_WEIGHTS, INDEX, VISUAL
from bolt.spectral.bases import Basis
from bolt.spectral.sources import BasisRecipe, SelectedSources
from bolt.spectral.spectral_change import BasisMismatch, SpectralChange, rebuild_change
from bolt.task.classifiers import Classifier, UnknownClassifier, build_classifier
from bolt.util.json_text import read_json

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone
    from bolt.spectral.sources import Sources


class UnreadableModel(ValueError):
    """A folder holds no complete model, or something that is needed to load it was not given."""


class BackboneMismatch(ValueError):
    """The model was adapted from another backbone than the given backbone."""


def load_model(
    folder: Path | str,
    backbone: Backbone | None = None,
    sources: Sources | None = None,
    device: torch.device | str = "cpu",
) -> Model:
    """Load a saved model of any form.

    Args:
        folder: written by :func:`bolt.model.saving.save`.
        backbone: the backbone it was adapted from; required for an ``adapter``, and for any form of a tower of timm.
        sources: the source models of its basis; required for an ``adapter`` of coefficients without basis.
        device: device of the model; with a backbone, the backbone's device is used.

    Raises:
        UnreadableModel: if a file is missing, damaged or of another format version, or a required argument is missing.
        BackboneMismatch: if the backbone is not the one it was adapted from; the message has both digests.
        bolt.spectral.spectral_change.BasisMismatch: if the sources are not those of its basis.
    """
    folder = Path(folder)
    index = read_index(folder)
    try:
        about = _about(index)
        if backbone is not None and backbone.digest != about.backbone_digest:
            raise BackboneMismatch(
                f"{folder} was adapted from {about.backbone} with the digest {about.backbone_digest}, and the backbone "
                f"given is {backbone.name} with the digest {backbone.digest}"
            )
        device = backbone.device if backbone else device
        _check_files(folder, index["files"])
        if index["form"] == "adapter":
            return _read_adapter(folder, index, about, backbone, sources, device)
        classifier = _classifier(index, _aligned_copies(load_file(folder / CLASSIFIER), device))
        tower = _read_tower(folder, index, backbone).to(device)
        tower.precision = backbone.precision if backbone else None
        return Model(tower, classifier, about, backbone.tower if backbone else None)
    except (KeyError, TypeError, SafetensorError, UnknownClassifier, TensorMismatch) as error:
        raise UnreadableModel(f"{folder} is not a complete model: {type(error).__name__} {error}") from error


def read_index(folder: Path) -> dict[str, Any]:
    """Read ``bolt.json``. Raises ``UnreadableModel`` if it is missing, damaged or of another version."""
    try:
        index = read_json(folder / INDEX)
        version, form = index["format"], index["form"]
    except FileNotFoundError:
        raise UnreadableModel(f"{folder} holds no saved model: it has no {INDEX}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableModel(f"{folder / INDEX} cannot be read: {error}") from None
    if version != FORMAT or form not in FORMS:
        raise UnreadableModel(f"{folder / INDEX} is of format {version}, form {form}; this version reads {FORMAT}")
    return dict(index)


def _about(index: Mapping[str, Any]) -> About:
    stated = dict(index["about"])
    listed = {name: tuple(stated[name]) for name in ("class_names", "mean", "std")}
    return About(**{field.name: stated[field.name] for field in fields(About) if field.name in stated} | listed)


def _check_files(folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        if not (folder / name).is_file():
            raise UnreadableModel(f"{folder} is not a complete model: {name} is missing")
        if files_digest([folder / name]) != digest:
            raise UnreadableModel(f"{folder / name} was changed or damaged: its checksum differs")


def _classifier(index: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Classifier:
    return build_classifier(index["classifier"]["kind"], tensors, index["classifier"]["numbers"])


def _read_tower(folder: Path, index: Mapping[str, Any], backbone: Backbone | None) -> ImageTower:
    if index["form"] == "huggingface":
        tensors = from_huggingface(load_file(folder / HUGGINGFACE_WEIGHTS))
    else:
        tensors = load_file(folder / VISUAL)
    if next(iter(tensors)).startswith("trunk."):
        if backbone is None:
            raise UnreadableModel(f"{folder} holds a tower of timm, which needs the backbone it was adapted from")
        return replace_tensors(backbone.tower, tensors)
    with torch.device("meta"):  # allocates no memory and draws no random numbers
        tower = ImageTower(TowerShape(**index["tower"]))
        if DEEP_PROMPTS in tensors:
            tower = tower.with_prompts(torch.empty(tensors[DEEP_PROMPTS].shape))
    tower = tower.to_empty(device="cpu")
    tower.load_open_clip(tensors)
    return tower.requires_grad_(False).eval()


def _read_adapter(
    folder: Path,
    index: Mapping[str, Any],
    about: About,
    backbone: Backbone | None,
    sources: Sources | None,
    device: torch.device | str,
) -> Model:
    if backbone is None:
        raise UnreadableModel(
            f"{folder} holds an adapter, which needs the backbone it was adapted from: {about.backbone} with the "
            f"digest {about.backbone_digest}"
        )
    frozen = backbone.tower
    groups = _group_by_prefix(_aligned_copies(load_file(folder / ADAPTER), device))
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
            f"{folder} holds coefficients without their basis, which is built from the source models "
            f"{', '.join(saved)}; pass them as sources, or save the model with its basis"
        )
    fitting = _fitting_sources(sources, saved, digests)
    try:
        change = rebuild_change(coefficients, groups["probe"], recipe, fitting, frozen.state_dict_open_clip())
    except BasisMismatch as error:
        raise BasisMismatch(f"{error}: {', '.join(saved)}") from None
    return replace(change, sources=saved, digests=digests)


def _fitting_sources(sources: Sources, saved: tuple[str, ...], digests: tuple[str, ...]) -> Sources:
    """Return the source models of a saved basis, in its order.

    They are found by the digests of their files, else by their names. If neither fits, as for renamed files of another
    format, ``sources`` is returned unchanged.
    """
    for wanted, found in ((digests, sources.file_digests()), (saved, sources.names)):
        if wanted == found:
            break
        if wanted and set(wanted) <= set(found):
            return SelectedSources(sources, [found.index(each) for each in wanted])
    return sources


def _aligned_copies(tensors: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """Copy tensors to new memory.

    Tensors from a file may be unaligned, and their matrix-vector products can then differ in the last bits.
    """
    return {name: tensor.clone().to(device) for name, tensor in tensors.items()}


def _group_by_prefix(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups
