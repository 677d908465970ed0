"""Saves a model to a folder, as safetensors and JSON files, in one of three forms.

``adapter``
    The classifier and the tower's change in its smallest form (:mod:`bolt.spectral.spectral_change`). Loading it needs
    the backbone, and also the source models if the basis is left out. Files: ``bolt.json``, ``adapter.safetensors``.
``state_dict``
    The whole image tower, with open_clip's names of its tensors, and the classifier. Loading it needs the backbone only
    for a tower of timm. Files: ``bolt.json``, ``visual.safetensors``, ``classifier.safetensors``.
``huggingface``
    The tower as a ``CLIPVisionModelWithProjection`` of transformers, and the classifier. Loading it needs no backbone.
    Files: ``bolt.json``, ``config.json``, ``preprocessor_config.json``, ``model.safetensors``,
    ``classifier.safetensors``.

``bolt.json`` has the version of the format, the class names, the preprocessing, the backbone with its digest, and the
checksum of every other file. ``bolt.json`` is written last.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save as save_bytes
from torch import Tensor

from bolt.clip.checkpoint_files import files_digest
from bolt.clip.feature_tower import FeatureTower
from bolt.clip.huggingface import config_from_shape, to_huggingface
from bolt.clip.image_files import Reading
from bolt.clip.input_size import Interpolation, Resize
from bolt.clip.tensor_files import save_tensors
from bolt.clip.tower import ImageTower
from bolt.spectral.spectral_change import SpectralChange
from bolt.spectral.spectral_linear import NonFiniteTensor
from bolt.task.classifiers import Classifier
from bolt.util.ranges import check_value

Form = Literal["adapter", "state_dict", "huggingface"]
FORMS: tuple[Form, ...] = get_args(Form)

FORMAT = 1
"""Version of the format; :func:`bolt.model.loading.load_model` refuses any other version."""

INDEX = "bolt.json"
ADAPTER = "adapter.safetensors"
VISUAL = "visual.safetensors"
CLASSIFIER = "classifier.safetensors"
HUGGINGFACE_WEIGHTS = "model.safetensors"
_PILLOW_FILTERS = {"bilinear": 2, "bicubic": 3}


@dataclass(frozen=True)
class About:
    """Metadata of a model: labels, preprocessing, backbone and notes.

    Attributes:
        class_names: the labels, in the order of the logits.
        backbone: name of the CLIP from which the model was adapted.
        backbone_digest: digest of the CLIP's frozen image tower (:attr:`bolt.clip.backbone.Backbone.digest`).
        logit_scale: the factor by which the CLIP multiplies a cosine to get a logit.
        mean, std: normalisation per channel, for pixels in [0, 1].
        resize, interpolation: the way in which images are resized, see :class:`bolt.clip.input_size.InputSize`.
        bands, range: how images of measured values, such as satellite images, are read; see
            :class:`bolt.clip.image_files.Reading`.
        notes: free-form notes, such as the method, its accuracy or the licence of the data.
    """

    class_names: tuple[str, ...]
    backbone: str
    backbone_digest: str
    logit_scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: Resize = "shortest"
    interpolation: Interpolation = "bicubic"
    notes: Mapping[str, Any] = field(default_factory=dict)
    bands: tuple[int, ...] | None = None
    range: tuple[float, float] | None = None

    @property
    def reading(self) -> Reading:
        """How the model reads images. Raises ``ValueError`` for invalid bands and for an invalid range."""
        return Reading(bands=self.bands, range=self.range)


@dataclass(frozen=True, eq=False)
class ModelParts:
    """An adapted image tower, its classifier and its metadata.

    Attributes:
        tower: the adapted image tower, frozen.
        classifier: raw features (B, D) -> logits (B, C).
        about: labels, preprocessing, backbone and notes.
        frozen: the pre-trained tower. It is the same object as ``tower`` if the method did not change the tower, and
            ``None`` for a model that was loaded from a whole tower without the backbone.
        change: the tower's change as coefficients in a basis, if the method makes such a change.

    Raises:
        ValueError: if the numbers of class names and of the classifier's classes differ.
    """

    tower: ImageTower
    classifier: Classifier
    about: About
    frozen: ImageTower | None = None
    change: SpectralChange | None = None

    def __post_init__(self) -> None:
        if len(self.about.class_names) != self.classifier.class_count:
            raise ValueError(
                f"{len(self.about.class_names)} class names for a classifier of {self.classifier.class_count} classes"
            )

    def changed_tensors(self) -> dict[str, Tensor]:
        """Return open_clip's name -> tensor for the tower's changed tensors that ``change`` does not describe.

        Raises ``ValueError`` if ``frozen`` is ``None``.
        """
        if self.frozen is None:
            raise ValueError("this model was loaded without its backbone, so its changed tensors are unknown")
        if self.frozen is self.tower:
            return {}
        own, before = self.tower.own_tensors(), self.frozen.own_tensors()
        changed = [
            name
            for name, tensor in own.items()
            # Tensors that share memory are not compared, so this is fast if few tensors were trained.
            if name not in before
            or (tensor.data_ptr() != before[name].data_ptr() and not torch.equal(tensor, before[name]))
        ]
        state, explained = self.tower.state_dict_open_clip(), self.change.coefficients if self.change else {}
        return {name: state[name] for name in changed if name not in explained}


def save(model: ModelParts, folder: Path | str, form: Form = "adapter", *, with_basis: bool = False) -> None:
    """Save a model to a new or empty folder, atomically: the folder appears with all files or not at all.

    Args:
        form: ``adapter``, ``state_dict`` or ``huggingface``; see the top of this module.
        with_basis: save an adapter's coefficients with their basis, so that loading needs no source model.

    Raises:
        bolt.spectral.spectral_linear.NonFiniteTensor: if a tensor has NaN or infinite entries; nothing is written.
        FileExistsError: if the folder exists and is not empty.
        ValueError: if the form is unknown or does not fit the model. ``adapter`` does not fit a model that was loaded
            without its backbone. The other forms do not fit a tower without layers to train, such as a ResNet.
            ``huggingface`` does not fit a tower of timm, a tower with learned tokens, or images that are padded.
    """
    check_value("with_basis", with_basis, bool)
    if form not in FORMS:
        raise ValueError(f"a model is saved as {', '.join(FORMS)}, not as {form!r}")
    if form != "adapter" and not model.tower.shape.layers:
        raise ValueError(f"{model.about.backbone} gives features only, so its models are saved as adapters")
    if form == "huggingface" and isinstance(model.tower, FeatureTower):
        raise ValueError(f"transformers has no CLIP like {model.about.backbone}; save an adapter or a state_dict")
    if form == "huggingface" and model.tower.prompts is not None:
        raise ValueError("transformers has no CLIP with learned tokens; save an adapter or a state_dict")
    target = Path(os.path.realpath(os.path.expanduser(folder)))  # an empty folder can be replaced, a link to one cannot
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is not empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        extra: dict[str, Any] = {}
        if form == "adapter":
            tensors, extra = _adapter(model, with_basis)
            save_tensors(_cpu_copies(tensors), staging / ADAPTER)
        else:
            _write_tower(model, staging, form)
        digests = {path.name: files_digest([path]) for path in sorted(staging.iterdir())}
        (staging / INDEX).write_text(_index(model, form, extra, digests), encoding="utf-8")
        staging.chmod(0o755)
        os.replace(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def adapter_files(model: ModelParts, max_bytes: int | None = None) -> dict[str, bytes] | None:
    """Return name -> content of the files that save a model as an ``adapter`` without its basis; ``bolt.json`` is last.

    Return ``None`` if the tensors together exceed ``max_bytes``. Raises the errors of :func:`save`.
    """
    tensors, extra = _adapter(model, with_basis=False)
    if max_bytes is not None and sum(tensor.nbytes for tensor in tensors.values()) > max_bytes:
        return None
    content = save_bytes(_cpu_copies(tensors))
    index = _index(model, "adapter", extra, {ADAPTER: hashlib.sha256(content).hexdigest()})
    return {ADAPTER: content, INDEX: index.encode()}


def _index(model: ModelParts, form: Form, extra: Mapping[str, Any], files: Mapping[str, str]) -> str:
    content = {
        "format": FORMAT,
        "form": form,
        "about": asdict(model.about),
        "tower": asdict(model.tower.shape),
        "classifier": {"kind": model.classifier.kind, "numbers": model.classifier.numbers()},
        **extra,
        "files": files,
    }
    return json.dumps(content, indent=1)


def _adapter(model: ModelParts, with_basis: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an adapter by their names in the file, and the adapter's entries for ``bolt.json``."""
    tensors = _with_prefix("classifier", model.classifier.tensors()) | _with_prefix("tower", model.changed_tensors())
    if model.change is None:
        return tensors, {}
    tensors |= _with_prefix("coefficients", model.change.coefficients) | _with_prefix("probe", model.change.probes())
    if with_basis:
        tensors |= _with_prefix("u", {name: basis.u for name, basis in model.change.bases.items()})
        tensors |= _with_prefix("v", {name: basis.v for name, basis in model.change.bases.items()})
    basis = {
        "recipe": asdict(model.change.recipe),
        "sources": list(model.change.sources),
        "digests": list(model.change.digests),
        "included": with_basis,
    }
    return tensors, {"basis": basis}


def _write_tower(model: ModelParts, folder: Path, form: Form) -> None:
    """Write the files of a ``state_dict`` or of a ``huggingface`` model."""
    state = model.tower.state_dict_open_clip()
    save_tensors(_cpu_copies(model.classifier.tensors()), folder / CLASSIFIER)
    if form == "state_dict":
        save_tensors(_cpu_copies(state), folder / VISUAL)
        return
    save_tensors(_cpu_copies(to_huggingface(state)), folder / HUGGINGFACE_WEIGHTS, metadata={"format": "pt"})
    configs = {"config.json": config_from_shape(model.tower.shape), "preprocessor_config.json": _preprocessor(model)}
    for name, config in configs.items():
        (folder / name).write_text(json.dumps(config, indent=2), encoding="utf-8")


def _preprocessor(model: ModelParts) -> dict[str, Any]:
    """Return the evaluation transform as the configuration of transformers' ``CLIPImageProcessor``."""
    size, about = model.tower.shape.image_size, model.about
    if about.resize == "longest":
        raise ValueError("transformers has no image processor that pads the shorter side; save an adapter")
    square = {"height": size, "width": size}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": square if about.resize == "squash" else {"shortest_edge": size},
        "resample": _PILLOW_FILTERS[about.interpolation],
        "do_center_crop": about.resize != "squash",
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(model.about.mean),
        "image_std": list(model.about.std),
    }


def _cpu_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU; no two copies share memory, as safetensors requires. Raises ``NonFiniteTensor``."""
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise NonFiniteTensor(f"{name} has NaN or infinite entries; the model is not written")
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _with_prefix(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{group}/{name}": tensor for name, tensor in tensors.items()}
