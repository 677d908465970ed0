"""The library by itself: from a CLIP, some images and perhaps a folder of checkpoints to a model, in a few calls.

Nothing in here knows a grid, a store or a tracker. ``import bolt`` offers it by name, and imports it when it is used.

Shape legend: N images, H, W height and width of one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.model.checkpoint_sources import CheckpointSources, checkpoint_paths
from bolt.model.in_memory import InMemoryImages
from bolt.model.model import ImageInput, Model
from bolt.protocol import STRICT
from bolt.spectral.sources import Sources
from bolt.task.task import Task

PROMPTS = ("a photo of a {}.",)
_TWINS = 0.9999
"""Cosine of two text embeddings that are as good as one."""

_PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def load_backbone(
    architecture: str | Path,
    weights: str | Path,
    *,
    quick_gelu: bool | None = None,
    name: str | None = None,
    device: str | torch.device = "cpu",
) -> Backbone:
    """A frozen CLIP of open_clip.

    Args:
        architecture: a model name of open_clip, or the path of a model configuration (``.json``).
        weights: a pre-trained tag of open_clip, which may fetch them, or a file.
        quick_gelu: whether the weights were trained with QuickGELU. ``None`` takes what open_clip knows of the tag, or
            the architecture's own for a file: OpenAI's weights in a file of yours need ``True``.
        name: as it is called in saved models; the architecture by default.

    Raises:
        bolt.clip.tower_shape.UnsupportedTower: for an image tower other than a plain vision transformer.
    """
    import open_clip  # seconds to import

    known = str(architecture)
    if known.endswith(".json"):
        open_clip.add_model_config(Path(known))
        known = Path(known).stem
    if quick_gelu is None:
        quick_gelu = bool((open_clip.get_pretrained_cfg(known, str(weights)) or {}).get("quick_gelu"))
    model = open_clip.create_model(known, pretrained=str(weights), force_quick_gelu=quick_gelu)
    return Backbone.from_open_clip(model, open_clip.get_tokenizer(known), name or known).to(device)


def load_sources(folder: str | Path, backbone: Backbone, *, leave_out: Sequence[str] = ()) -> CheckpointSources:
    """Fine-tuned models as sources: every checkpoint in a folder, of any known layout, named after its file.

    Args:
        leave_out: names that are not used; the model of the data that is adapted to would be one.

    Raises:
        FileNotFoundError: where there is no checkpoint.
        KeyError: for a name to leave out that is not there.
    """
    found = checkpoint_paths(Path(folder))
    for name in leave_out:
        del found[name]
    return CheckpointSources(backbone, found)


def read_folder(folder: str | Path) -> tuple[list[Image.Image], list[int], list[str]]:
    """Images, their labels and the class names, of a folder with one sub-folder of images per class.

    Class names are the sub-folders' in order, with ``_`` and ``-`` read as spaces. Raises ``FileNotFoundError`` where
    there is no image.
    """
    images: list[Image.Image] = []
    labels: list[int] = []
    names: list[str] = []
    for sub in sorted(path for path in Path(folder).iterdir() if path.is_dir() and not path.name.startswith(".")):
        files = sorted(path for path in sub.iterdir() if path.suffix.lower() in _PICTURES)
        for path in files:
            with Image.open(path) as image:
                image.load()
                images.append(image)
            labels.append(len(names))
        if files:
            names.append(sub.name.replace("_", " ").replace("-", " "))
    if not images:
        raise FileNotFoundError(f"{folder} holds no sub-folder with images ({', '.join(_PICTURES)})")
    return images, labels, names


def adapt(
    backbone: Backbone,
    images: Sequence[ImageInput],
    labels: Sequence[int] | Tensor | None,
    class_names: Sequence[str],
    *,
    method: str = "bolt",
    sources: Sources | None = None,
    prompts: Sequence[str] = PROMPTS,
    name: str = "mine",
    seed: int = 1,
    mirror: bool = True,
    exif_rotation: bool = True,
    initial: Mapping[str, Tensor] | None = None,
    **settings: Any,
) -> Model:
    """Adapt a backbone to a handful of images, by any registered method.

    Args:
        images: as Pillow opens them, or uint8 RGB (3, H, W).
        labels: the class of each, from 0; ``None`` adapts to the images without labels (methods of the ``tta`` track).
        class_names: in words; what the prompts are filled with and what predictions are called.
        method: a name in ``bolt.methods.METHODS``.
        sources: models fine-tuned on other data, for the methods that use them.
        name, seed: key the augmented views and the order of the images: the same ones give the same bits.
        mirror: whether a mirrored image keeps its class; it does not for letters.
        exif_rotation: whether photographs are turned as their EXIF data say, now and in predictions.
        initial: a meta-learned image tower, for the method that starts from one.
        settings: of the method, by name; its defaults are its recipe.

    Warns of two classes whose words mean the same to the text tower.

    Raises:
        bolt.methods.UnknownName: for a method or setting that does not exist, with the nearest that does.
        ValueError: for labels and images that do not belong together, a class without an image, a method that cannot
            do without labels or sources, and what the method itself raises.
    """
    chosen = METHODS[method]
    track = "fewshot" if labels is not None else "tta"
    if track not in chosen.tracks:
        raise ValueError(f"{method} {'needs labels' if labels is None else 'adapts to images without labels only'}")
    if chosen.uses_sources and chosen.meta_recipe is None and sources is None:
        raise ValueError(f"{method} is made of source models; pass sources=bolt.load_sources(folder, backbone)")
    labels_N = _checked(labels, len(images), len(class_names))
    shown = InMemoryImages(backbone, images, name=name, seed=seed, mirror=mirror, exif_rotation=exif_rotation)
    head_CD = backbone.zero_shot_head(class_names, prompts)
    _warn_of_twins(head_CD, class_names)
    task = Task(
        backbone=backbone,
        head_CD=head_CD,
        support=shown.support(labels_N),
        sources=sources if chosen.uses_sources else None,
        protocol=STRICT,
        dataset=name,
        seed=seed,
        unlabelled=shown.unlabelled() if labels is None else None,
        initial=initial,
    )
    configured = chosen.configure(settings, track)
    adapted = chosen.run(task, configured)
    notes = {"method": chosen.title, "name": name, "images": len(images), **adapted.details}
    return Model.from_adapted(backbone, adapted, class_names, exif_rotation=exif_rotation, notes=notes)


def _warn_of_twins(head_CD: Tensor, class_names: Sequence[str]) -> None:
    """Two classes with one text embedding cannot be told apart by the text head, however the tower is trained."""
    likeness_CC = (head_CD @ head_CD.T).fill_diagonal_(0)
    if float(likeness_CC.max()) > _TWINS:
        one, other = divmod(int(likeness_CC.argmax()), len(class_names))
        warnings.warn(
            f"the text tower hardly tells {class_names[one]!r} from {class_names[other]!r}; use other words or prompts",
            stacklevel=3,
        )


def _checked(labels: Sequence[int] | Tensor | None, images: int, classes: int) -> Tensor:
    """The labels (N,), int64; empty for none."""
    labels_N = torch.as_tensor([] if labels is None else labels, dtype=torch.int64)
    if labels is None:
        return labels_N
    if len(labels_N) != images or not images:
        raise ValueError(f"{images} images and {len(labels_N)} labels")
    if int(labels_N.min()) < 0 or int(labels_N.max()) >= classes:
        raise ValueError(f"labels are 0 to {classes - 1}, the positions in class_names")
    empty = torch.bincount(labels_N, minlength=classes).eq(0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"class {empty[0]} has no image; leave its name out of class_names")
    return labels_N
