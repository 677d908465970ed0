"""The functions of ``import bolt``: load a backbone and source models, and adapt the backbone to images.

Shape legend: N images, C classes, D embedding width, H, W height and width of an image.
"""

import operator
import os
import reprlib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bolt.class_words import check_distinct, class_words, names_of_folders
from bolt.clip.augment import SUPPORT_CROP, Crop, augmented_view, evaluation_view
from bolt.clip.backbone import Backbone, filled, prompt_lists
from bolt.clip.image_files import UPRIGHT, Reading, open_named
from bolt.clip.input_size import check_preprocessing
from bolt.clip.precision import plain_torch
from bolt.clip.preprocess import rgb_pixels
from bolt.clip.whole_clip import (
    UnknownActivation,
    clip_from_file,
    clip_tokenizer,
    file_activation,
    model_name,
    preprocessing,
)
from bolt.image_folders import (
    class_folders,
    dataset_folder,
    image_suffixes,
    images_below,
    part_folders,
    unused_notes,
    why_no_class_folders,
)
from bolt.methods import METHODS
from bolt.model.checkpoint_sources import CheckpointSources, checkpoint_paths
from bolt.model.model import ImageInput, Model, check_are_images, check_labelled_images
from bolt.protocol import STRICT, Precision
from bolt.seeds import torch_generator
from bolt.spectral.sources import Sources
from bolt.task.equal_classes import equal_classes
from bolt.task.support import batch_order
from bolt.task.task import EVALUATION_VIEW, PROMPTS, ClassText, Support, Task, Unlabelled
from bolt.util.ranges import check_value

_KEPT_BYTES = 2**28
"""Limit of the un-augmented views that stay in memory: 256 MiB, or 1,780 images of 224 pixels a side."""


@plain_torch()
def load_backbone(
    architecture: str | Path,
    weights: str | Path,
    *,
    quick_gelu: bool | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str | None = None,
    device: str | torch.device = "cpu",
) -> Backbone:
    """Load a frozen CLIP with open_clip.

    Args:
        architecture: a model name of open_clip, or the path of a model configuration (``.json``).
        weights: a pre-trained tag of open_clip, or a file with the weights of both towers. For a tag, open_clip
            downloads the weights if they are not on the disk.
        quick_gelu: whether the weights were trained with QuickGELU. By default, open_clip's list decides for a tag, and
            :func:`bolt.clip.whole_clip.file_activation` for a file.
        mean: mean of each channel, which is subtracted from pixels in [0, 1]; by default from
            :func:`bolt.clip.whole_clip.preprocessing`.
        std: standard deviation of each channel, by which pixels are then divided; by default from the same function.
        name: name of the backbone in saved models; by default the architecture.
        device: device of the backbone.

    Raises:
        bolt.clip.whole_clip.UnknownActivation: if the activation for a file's weights is unknown, or if the weights,
            ``architecture`` and ``quick_gelu`` contradict each other.
        bolt.clip.whole_clip.UnknownPreprocessing: if a configuration file beside the weights cannot be read, or states
            preprocessing that no backbone can have.
        ValueError: if ``architecture`` is a file without a part that open_clip needs, or if ``mean`` or ``std`` are not
            those of pixels in [0, 1].
        bolt.clip.checkpoint_files.UnreadableCheckpoint: if a file cannot be read.
        bolt.clip.tensor_names.TensorMismatch: if a file does not hold the weights of this architecture.
        bolt.clip.tower_shape.UnsupportedTower: if the input of the image tower is not square.
    """
    import open_clip  # takes seconds to import

    check_value("quick_gelu", quick_gelu, bool | None)
    architecture, weights = map(os.path.expanduser, (architecture, weights))
    model = model_name(architecture)
    listed = open_clip.get_pretrained_cfg(model, weights) or {}
    config = open_clip.get_model_config(model) or {}
    how = preprocessing(config, model, weights)
    how |= {field: tuple(map(float, value)) for field, value in (("mean", mean), ("std", std)) if value is not None}
    check_preprocessing(how)
    file = Path(weights) if not listed and Path(weights).exists() else None
    if file is not None:
        quick_gelu = file_activation(file, architecture, quick_gelu)
        clip = clip_from_file(model, file, quick_gelu)
    else:
        stated = bool(listed.get("quick_gelu") or config.get("quick_gelu"))
        quick_gelu = stated if quick_gelu is None else quick_gelu
        clip = open_clip.create_model(model, pretrained=weights, force_quick_gelu=quick_gelu)
    backbone = Backbone.from_open_clip(clip, clip_tokenizer(model, file), name or model, given_away=True, **how)
    if quick_gelu != (backbone.activation == "quick_gelu"):
        what = f"{architecture} has the activation {backbone.activation}, and the weights {weights} need the other one"
        raise UnknownActivation(f"{what}: add or remove the ending -quickgelu, or a configuration's entry quick_gelu")
    return backbone.to(device)


def load_sources(folder: str | Path, backbone: Backbone, *, leave_out: Sequence[str] = ()) -> CheckpointSources:
    """Load source models: all checkpoints in a folder, each named after its file.

    Args:
        folder: the folder with the checkpoints, of any layout in :mod:`bolt.clip.checkpoint_conversion`.
        backbone: the CLIP from which the source models were fine-tuned.
        leave_out: names of checkpoints to skip, such as a model that was fine-tuned on the data to adapt to.

    Raises:
        FileNotFoundError: if the folder holds no checkpoint.
        KeyError: if a name in ``leave_out`` does not exist.
        TypeError: if ``leave_out`` is a single name.
        ValueError: if two checkpoints have the same name, or if none is left.
    """
    if isinstance(leave_out, str):
        raise TypeError(f"leave_out is a list of names, such as [{leave_out!r}]")
    found = checkpoint_paths(Path(os.path.expanduser(folder)))
    for name in leave_out:
        if name not in found:
            raise KeyError(f"leave_out names {name!r}, but the checkpoints in {folder} are {', '.join(found)}")
        del found[name]
    return CheckpointSources(backbone, found)


def read_folder(folder: str | Path) -> tuple[list[Image.Image], list[int], list[str]]:
    """Return images, labels and class names from a folder with one sub-folder of images per class.

    The class folders may be in the folder itself or in its ``train/``. :func:`bolt.class_words.class_words` makes class
    names from the folders' names. A folder without images is no class. Warnings name such folders, unused files, a
    single class, and folder names that are probably not words.

    Raises ``FileNotFoundError`` if there is no folder or no image. Raises ``ValueError`` if two folders give the same
    class name, or if the folders' names look like splits or masks instead of classes. Raises ``OSError`` with the path
    of an image that cannot be decoded.
    """
    root = Path(os.path.expanduser(folder))
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root.absolute()}; give one with a sub-folder of images per class")
    given, root = root, dataset_folder(root)
    classes_in = part_folders(root).get("train", root)
    files = {path: images_below(path) for path in class_folders(classes_in)}
    empty = [f"{path.name}/ holds no images and is no class" for path, found in files.items() if not found]
    if not (classes := [path for path, found in files.items() if found]):
        raise FileNotFoundError(f"{classes_in} holds no sub-folder with images ({', '.join(sorted(image_suffixes()))})")
    if wrong := why_no_class_folders(classes):
        raise ValueError(f"{classes_in}: {wrong}; make a folder for each class, as train/CLASS/")
    words, about_words = class_words([path.name for path in classes])
    check_distinct([*words.values()], [*words])
    only = [f"there is only one class, {classes[0].name!r}"] * (len(classes) == 1)
    for note in (*only, *unused_notes(given, [classes_in]), *empty, *about_words):
        warnings.warn(f"{folder}: {note}", stacklevel=2)
    images = [open_named(path) for class_folder in classes for path in files[class_folder]]
    labels = [label for label, class_folder in enumerate(classes) for _ in files[class_folder]]
    return images, labels, [*words.values()]


@plain_torch()
def adapt(
    backbone: Backbone,
    images: Sequence[ImageInput],
    labels: Sequence[int] | Tensor | None,
    class_names: Iterable[str],
    *,
    method: str = "bolt",
    sources: Sources | None = None,
    prompts: Iterable[str] | Mapping[str, Iterable[str]] = PROMPTS,
    name: str = "mine",
    seed: SupportsIndex = 1,
    mirror: bool = True,
    initial: Mapping[str, Tensor] | None = None,
    precision: Precision | None = None,
    reading: Reading = UPRIGHT,
    **settings: Any,
) -> Model:
    """Adapt a backbone to a few images with any registered method.

    Warns if class names are numbers or names of folders, if a source is named as the data, if classes have equal text
    embeddings, or if a text is longer than the text tower reads.

    Args:
        backbone: the CLIP to adapt; it is not changed.
        images: Pillow images, paths of image files, or uint8 RGB tensors (3, H, W).
        labels: class of each image, from 0; ``None`` if there are no labels. Only methods for test-time adaptation
            adapt without labels: those of the tracks ``tta`` and ``tta_stream``.
        class_names: names of the classes for prompts and predictions, in the order of the labels.
        method: a name in ``bolt.methods.METHODS``.
        sources: models fine-tuned on other data, for the methods that use them.
        prompts: templates of the text prompts, with ``{}`` for the class name; or a mapping from class names to lists
            of sentences.
        name: name of the data. The augmented views and the order of the images depend on it and on ``seed``.
        seed: a number; equal names and seeds give bit-identical results.
        mirror: whether training views may be mirrored; use ``False`` if mirroring changes the class, as for letters.
        initial: tensors of a meta-learned image tower, for the method that starts from such a tower.
        precision: number format of the towers' matrix products, ``float32``, ``tf32`` or ``bfloat16``; by default the
            format of ``backbone``. The returned model uses this format too, but a saved model does not state it.
        reading: for images of measured values, such as satellite images: which bands are read, and which values
            become black and white. See :class:`bolt.clip.image_files.Reading`. Its ``upright`` is ignored: photographs
            are always turned upright. The returned model reads images in the same way, also after saving and loading.
        settings: settings of the method, by name.

    Raises:
        bolt.methods.UnknownName: for an unknown method or setting; the message has the most similar name.
        TypeError: if ``class_names`` or ``images`` has no order, if ``images`` has no length or holds an object that is
            no image, if a class has several names, if ``sources`` are files, or if most other arguments are of another
            type.
        ValueError: if ``mirror`` is not True or False, if prompts are no lists of texts, if labels are no whole numbers
            or do not fit the images or their folders, if a class has no name or no image, if labels or sources that the
            method needs are missing, if the sources were loaded for another backbone or have changed since they were
            read, or if a setting has an invalid value or no effect.
        bolt.clip.precision.UnsupportedPrecision: if the device cannot compute in the number format.
    """
    for what, given, kind, words in (
        ("backbone", backbone, Backbone, "made by bolt.load_backbone"),
        ("method", method, str, "a name in bolt.METHODS"),
        ("name", name, str | Integral, "a text"),
        ("seed", seed, SupportsIndex, "a whole number"),
        ("reading", reading, Reading, "a bolt.clip.image_files.Reading"),
    ):
        if not isinstance(given, kind) or isinstance(given, bool):
            raise TypeError(f"{what} is {words}, not {reprlib.repr(given)}")
    check_value("mirror", mirror, bool)
    backbone, prompts = backbone.at(precision), prompt_lists(prompts)
    if isinstance(class_names, str | set | frozenset | Mapping) or not isinstance(class_names, Iterable):
        raise TypeError("class_names is a list of names, in the order of the labels")
    check_are_images(images)
    class_names, seed = [*class_names], operator.index(seed)
    for label, given in enumerate(class_names):
        if isinstance(given, Collection | os.PathLike) and not isinstance(given, str):  # bytes, or several names
            raise TypeError(f"the name of class {label} is {reprlib.repr(given)}, and must be one text")
        if given is None or given != given or not str(given).strip():  # NaN, in a table, is no name either
            raise ValueError(f"class {label} has no name")
    class_names = [*map(str, class_names)]
    chosen = METHODS[method]
    wanted = ("fewshot",) if labels is not None else ("tta", "tta_stream")
    track = next((name for name in wanted if name in chosen.tracks), "")
    if chosen.tracks == {"tta_image"}:
        raise ValueError(f"{method} adapts to each image separately, so there is no model to return")
    if not track:
        raise ValueError(f"{method} {'needs labels' if labels is None else 'adapts only to images without labels'}")
    configured = chosen.configure_strictly(settings, track)
    reads_sources, remedy = chosen.needs_sources(configured), "pass sources=bolt.load_sources(folder, backbone)"
    if chosen.uses_source_models and reads_sources and sources is None:
        raise ValueError(f"{method} needs source models; {remedy}")
    if isinstance(sources, str | Path | list | tuple | dict):
        raise TypeError(f"sources are source models, not files: {remedy}")
    if reads_sources and isinstance(sources, CheckpointSources) and sources.backbone != backbone.digest:
        raise ValueError(f"the sources were loaded for another backbone than {backbone.name}; {remedy}")
    if reads_sources and isinstance(sources, CheckpointSources) and sources.replaced:
        raise ValueError(f"the files of sources have changed since they were read: {sources.replaced}; {remedy}")
    if sources is not None and reads_sources and name in sources.names:
        warnings.warn(f"{name} is also a source's name: leave it out if it has learned from these data", stacklevel=3)
    labels_N = _check_labels(labels, len(images), len(class_names))
    check_labelled_images(images, labels_N.tolist(), class_names)
    numbers = ", ".join(class_names[:3]) if "".join(class_names).isdecimal() and prompts == [*PROMPTS] else ""
    if not isinstance(prompts, Mapping) and (odd := names_of_folders(class_names) or numbers):
        warnings.warn(f"class names that stand in the prompts, but do not describe an image: {odd}", stacklevel=3)
    reading = replace(reading, upright=True)
    crop = SUPPORT_CROP if mirror else replace(SUPPORT_CROP, flip=0.0)
    support, unlabelled = _in_memory(backbone, _tensors(images, reading), labels_N, name, seed, crop)
    head_CD = backbone.zero_shot_head(class_names, prompts)
    _warn_of_shared_vectors(head_CD, class_names)
    if cut := backbone.cut_off(filled(class_names, prompts)):
        what = f"{backbone.name} does not read the end of {len(cut)} of the texts, which are too long"
        warnings.warn(f"{what}; the first is {reprlib.repr(cut[0])}", stacklevel=3)
    task = Task(
        backbone=backbone,
        head_CD=head_CD,
        support=support,
        sources=sources if reads_sources else None,
        protocol=STRICT,
        dataset=name,
        seed=seed,
        unlabelled=unlabelled if labels is None else None,
        initial=initial,
        text=ClassText.of(class_names, prompts) if chosen.trains_text(configured) else None,
    )
    adapted = chosen.run(task, configured)
    notes = {"method": chosen.title, "name": name, "images": len(images), **adapted.details}
    return Model.from_adapted(backbone, adapted, class_names, notes=notes, reading=reading)


def _tensors(images: Sequence[ImageInput], reading: Reading) -> list[Tensor]:
    """Return images as uint8 RGB (3, H, W). Photographs are turned upright by their EXIF orientation."""
    return [
        image if isinstance(image, Tensor) else torch.from_numpy(rgb_pixels(open_named(image, reading)))
        for image in images
    ]


def _in_memory(
    backbone: Backbone, tensors: Sequence[Tensor], labels_N: Tensor, name: str, seed: int, crop: Crop
) -> tuple[Support, Unlabelled]:
    """Return images as a task's support, which is empty if there are no labels, and as its unlabelled images.

    As in the benchmark, the random numbers of an image's view depend only on the name of the data, the seed, the number
    of the view and the position of the image. ``tensors``: uint8 RGB images (3, H, W).
    """

    kept: dict[int, Tensor] = {}  # none is dropped for another: the rows are read in the same order again and again

    def view_of(row: int, view: int) -> Tensor:
        if view != EVALUATION_VIEW:
            return augmented_view(tensors[row], backbone.image_size, name, seed, view, row, crop)
        found = kept[row] if row in kept else evaluation_view(tensors[row], backbone.input_size)
        if len(kept) < _KEPT_BYTES // (3 * backbone.image_size**2):
            kept[row] = found
        return found

    def pixels(view: int, rows: Tensor) -> Tensor:
        return torch.stack([view_of(row, view) for row in rows.tolist()])

    def features(view: int) -> Tensor:
        return backbone.encode_images(pixels(view, torch.arange(len(tensors))))

    def epoch_order(epoch: int) -> Tensor:
        return batch_order(len(labels_N), dataset=name, seed=seed, epoch=epoch)

    def stream_order(stream: str, epoch: int, size: int) -> Tensor:
        return torch.randperm(size, generator=torch_generator("stream", name, seed, stream, epoch, size))

    support = Support(labels_N.to(backbone.device), torch.arange(len(labels_N)), pixels, features, epoch_order)
    return support, Unlabelled(len(tensors), pixels, lambda: features(EVALUATION_VIEW), stream_order)


def _warn_of_shared_vectors(head_CD: Tensor, class_names: Sequence[str]) -> None:
    """Warn if the text head cannot tell some classes apart, because their text embeddings are equal."""
    if groups := equal_classes(head_CD.numpy(force=True)):
        equal = "; ".join(" = ".join(repr(class_names[label]) for label in group) for group in groups)
        warnings.warn(
            f"classes with equal text embeddings, which the text head cannot tell apart: {equal}; use other "
            "class names or prompts",
            stacklevel=4,
        )


def _check_labels(labels: Sequence[int] | Tensor | None, images: int, classes: int) -> Tensor:
    """Return the labels (N,), int64; empty if ``labels`` is ``None``."""
    if not images:
        raise ValueError("there is no image to adapt to")
    if labels is None:
        return torch.empty(0, dtype=torch.int64)
    try:
        given = labels.numpy(force=True) if isinstance(labels, Tensor) else np.asarray(labels)
        given = np.asarray(given.tolist()) if given.dtype == object and given.ndim == 1 else given
    except ValueError:  # lists of several lengths
        given = np.asarray([*map(str, labels)])
    if given.ndim != 1 or given.dtype.kind not in "biuf" or (given % 1).any():
        what = "labels are whole numbers from 0, one for each image: positions in class_names"
        raise ValueError(f"{what}; the labels given are {given.dtype} {given.shape}, such as {given.flat[:1]}")
    labels_N = torch.from_numpy(given.astype(np.int64))
    if len(labels_N) != images:
        raise ValueError(f"{images} images and {len(labels_N)} labels")
    if int(labels_N.min()) < 0 or int(labels_N.max()) >= classes:
        found = f"{int(labels_N.min())} to {int(labels_N.max())}"
        raise ValueError(f"labels are 0 to {classes - 1}, the positions in class_names; the given labels are {found}")
    if empty := torch.bincount(labels_N, minlength=classes).eq(0).nonzero().flatten().tolist():
        raise ValueError(f"class {empty[0]} has no image; leave its name out of class_names")
    return labels_N
