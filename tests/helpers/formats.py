"""Write small datasets in the format that each real dataset has on disk after ``data prepare``.

The colour of an image tells its class. A black bar at the left of its upper half tells whether it is upright. So a test
can check labels and orientation. Images are 16 pixels wide if the format allows it. The number of classes is that of
the real dataset.
"""

import io
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import HuggingFaceRoute, TorchvisionRoute
from orchestrator.datasets.routes.class_folders import wnids

Counts = dict[str, int]
"""Images that were written per part: ``train`` and ``test``, or ``all``."""
LEVELS = np.arange(30, 256, 25)
"""Ten values per channel, none of them black, far enough apart for JPEG."""


def colour(label: int) -> tuple[int, int, int]:
    """Return one of 1,000 colours; neighbouring labels get distant colours."""
    red, rest = divmod(label * 919 % 1000, 100)
    return int(LEVELS[red]), int(LEVELS[rest // 10]), int(LEVELS[rest % 10])


def grey(label: int) -> int:
    """Return one of 50 greys."""
    return 40 + 4 * label


def picture(label: int, size: int = 16) -> NDArray[np.uint8]:
    """Return an image of the class's colour with the bar: (size, size, 3)."""
    return with_bar(np.broadcast_to(np.array(colour(label), dtype=np.uint8), (size, size, 3)).copy())


def grey_picture(label: int, size: int = 28) -> NDArray[np.uint8]:
    """Return an image of the class's grey with the bar: (size, size)."""
    return with_bar(np.full((size, size), grey(label), dtype=np.uint8))


def with_bar(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    pixels[: height // 2, : width // 4] = 0
    return pixels


def label_seen(image: Image.Image, *, in_grey: bool) -> int:
    """Return the class whose colour the lower right corner of the image shows."""
    pixels = np.asarray(image.convert("RGB")).astype(np.int64)
    corner = pixels[-pixels.shape[0] // 4 :, -pixels.shape[1] // 4 :].mean(axis=(0, 1))
    if in_grey:
        return round((corner[0] - 40) / 4)
    red, green, blue = (int(np.abs(LEVELS - value).argmin()) for value in corner)
    return (100 * red + 10 * green + blue) * pow(919, -1, 1000) % 1000


def is_upright(image: Image.Image) -> bool:
    """Return whether the image is upright: not mirrored, rotated or transposed."""
    pixels = np.asarray(image.convert("L"))
    eighth = pixels.shape[0] // 8
    dark = [bool(pixels[row * eighth, column * eighth] < 15) for row, column in ((3, 1), (1, 3), (3, 7), (7, 1))]
    return dark == [True, False, False, False]


@cache
def encoded(label: int, kind: str) -> bytes:
    """Return the content of an image file."""
    buffer = io.BytesIO()
    options = {"quality": 100, "subsampling": 0} if kind == "jpeg" else {}
    Image.fromarray(picture(label)).save(buffer, kind, **options)
    return buffer.getvalue()


def put(path: Path, label: int) -> None:
    """Write an image file in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = {".jpg": "jpeg", ".jpeg": "jpeg", ".tif": "tiff"}
    path.write_bytes(encoded(label, kinds.get(path.suffix.lower(), path.suffix[1:].lower())))


def labels_of(classes: int, per_class: int) -> list[int]:
    """Return the labels 0 to ``classes`` - 1, ``per_class`` times in a row."""
    return [int(label) for label in np.tile(np.arange(classes), per_class)]


def names_of(entry: DatasetEntry) -> list[str]:
    """Return a name for each class: those in the catalog entry, and made-up ones for classes without a name."""
    known = list(entry.class_names) if isinstance(entry.class_names, dict) else list(entry.renamed)
    return sorted([*known, *(f"thing_{number:03}" for number in range(entry.classes - len(known)))])


def lines(path: Path, rows: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def dtd(entry: DatasetEntry, root: Path) -> Counts:
    base = root / "dtd" / "dtd"
    names = names_of(entry)
    for split in ("train", "val", "test"):
        rows = []
        for label, name in enumerate(names):
            rows.append(f"{name}/{name}_{split}.jpg")
            put(base / "images" / rows[-1], label)
        lines(base / "labels" / f"{split}1.txt", rows)
    return {"train": 94, "test": 47}


def gtsrb(entry: DatasetEntry, root: Path) -> Counts:
    base = root / "gtsrb"
    rows = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for label in range(43):
        put(base / "GTSRB" / "Training" / f"{label:05}" / "00000_00000.ppm", label)
        put(base / "GTSRB" / "Final_Test" / "Images" / f"{42 - label:05}.ppm", label)
        rows.append(f"{42 - label:05}.ppm;16;16;1;1;15;15;{label}")
    lines(base / "GT-final_test.csv", rows)
    return {"train": 43, "test": 43}


def idx(path: Path, values: NDArray[np.uint8]) -> None:
    """Write an IDX file of bytes: a magic number with the rank, the sizes, the values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([0x0800 + values.ndim, *values.shape], dtype=">i4").tobytes()
    path.write_bytes(header + values.tobytes())


def mnist(entry: DatasetEntry, root: Path) -> Counts:
    assert isinstance(entry.route, TorchvisionRoute)
    counts = {}
    for split, stem, per_class in (("train", "train", 3), ("test", "t10k", 2)):
        labels = labels_of(10, per_class)
        raw = root / entry.route.dataset / "raw"
        idx(raw / f"{stem}-images-idx3-ubyte", np.stack([grey_picture(label) for label in labels]))
        idx(raw / f"{stem}-labels-idx1-ubyte", np.array(labels, dtype=np.uint8))
        counts[split] = len(labels)
    return counts


def emnist(entry: DatasetEntry, root: Path) -> Counts:
    kind = "digits" if entry.classes == 10 else "balanced"
    counts = {}
    for split in ("train", "test"):
        labels = labels_of(entry.classes, 2)
        stem = root / "EMNIST" / "raw" / f"emnist-{kind}-{split}"
        stored = np.stack([grey_picture(label).T for label in labels])
        idx(stem.with_name(f"{stem.name}-images-idx3-ubyte"), stored)
        idx(stem.with_name(f"{stem.name}-labels-idx1-ubyte"), np.array(labels, dtype=np.uint8))
        counts[split] = len(labels)
    return counts


def svhn(entry: DatasetEntry, root: Path) -> Counts:
    labels = labels_of(10, 2)
    root.mkdir(parents=True)
    stored = np.stack([picture(label, 32) for label in labels], axis=-1)
    for split in ("train", "test"):
        numbers = np.array([[label or 10] for label in labels], np.uint8)
        savemat(root / f"{split}_32x32.mat", {"X": stored, "y": numbers})
    return {"train": 20, "test": 20}


def stl10(entry: DatasetEntry, root: Path) -> Counts:
    base = root / "stl10_binary"
    base.mkdir(parents=True)
    labels = labels_of(10, 2)
    columns_first = np.stack([picture(label, 96).transpose(2, 1, 0) for label in labels])
    for split in ("train", "test"):
        (base / f"{split}_X.bin").write_bytes(columns_first.tobytes())
        (base / f"{split}_y.bin").write_bytes(np.array(labels, dtype=np.uint8).__add__(1).tobytes())
    (base / "unlabeled_X.bin").write_bytes(columns_first[:1].tobytes())
    lines(base / "class_names.txt", names_of(entry))
    return {"train": 20, "test": 20}


def oxford_pets(entry: DatasetEntry, root: Path) -> Counts:
    base = root / "oxford-iiit-pet"
    for split in ("trainval", "test"):
        rows = []
        for label in range(37):
            rows.append(f"{'Great' if label % 3 else 'great'}_breed_{label:02}_{split == 'test':d} {label + 1} 1 1")
            put(base / "images" / f"{rows[-1].split()[0]}.jpg", label)
        lines(base / "annotations" / f"{split}.txt", rows)
    return {"train": 37, "test": 37}


def flowers102(entry: DatasetEntry, root: Path) -> Counts:
    base = root / "flowers-102"
    labels = labels_of(102, 3)
    for number, label in enumerate(labels, start=1):
        put(base / "jpg" / f"image_{number:05}.jpg", label)
    savemat(base / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8) + 1})
    thirds = np.arange(1, 307, dtype=np.uint16).reshape(3, 1, 102)
    savemat(base / "setid.mat", {"trnid": thirds[1], "valid": thirds[0], "tstid": thirds[2]})
    return {"train": 102, "test": 102}


def dump(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def cifar(entry: DatasetEntry, root: Path) -> Counts:
    ten = entry.classes == 10
    base = root / ("cifar-10-batches-py" if ten else "cifar-100-python")
    files = {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}
    if not ten:
        files = {"train": ["train"], "test": ["test"]}
    labels = labels_of(entry.classes, 2)
    data = np.stack([picture(label, 32).transpose(2, 0, 1).ravel() for label in labels])
    for batch in (batch for batches in files.values() for batch in batches):
        dump(base / batch, {"data": data, "labels" if ten else "fine_labels": labels})
    names = names_of(entry)
    dump(base / ("batches.meta" if ten else "meta"), {"label_names" if ten else "fine_label_names": names})
    return {split: len(batches) * len(labels) for split, batches in files.items()}


def food101(entry: DatasetEntry, root: Path) -> Counts:
    base = root / "food-101"
    (base / "meta").mkdir(parents=True)
    for split, first in (("train", 0), ("test", 10)):
        listed = {name: [f"{name}/{first + n}" for n in range(2)] for name in reversed(names_of(entry))}
        (base / "meta" / f"{split}.json").write_text(json.dumps(listed))
        for label, name in enumerate(names_of(entry)):
            for image in listed[name]:
                put(base / "images" / f"{image}.jpg", label)
    return {"train": 202, "test": 202}


def rendered_sst2(entry: DatasetEntry, root: Path) -> Counts:
    for split in ("train", "valid", "test"):
        for label, name in enumerate(("negative", "positive")):
            for number in range(3):
                put(root / "rendered-sst2" / split / name / f"{number}.png", label)
    return {"train": 6, "test": 6}


def fgvc_aircraft(entry: DatasetEntry, root: Path) -> Counts:
    data = root / "fgvc-aircraft-2013b" / "data"
    names = ["707-320", "F/A-18", "Eurofighter Typhoon", *(f"A{number}" for number in range(97))]
    lines(data / "variants.txt", names)
    for first, split in ((0, "train"), (1000, "test")):
        rows = [f"{first + label:07} {name}" for label, name in enumerate(names)]
        lines(data / f"images_variant_{split}.txt", reversed(rows))
        for label in range(100):
            put(data / "images" / f"{first + label:07}.jpg", label)
    return {"train": 100, "test": 100}


def country211(entry: DatasetEntry, root: Path) -> Counts:
    codes = [f"{first}{second}" for first in "ABCDEFGHI" for second in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"][:211]
    for split in ("train", "valid", "test"):
        for label, code in enumerate(codes):
            put(root / "country211" / split / code / "1.jpg", label)
    return {"train": 211, "test": 211}


def imagenet(entry: DatasetEntry, root: Path) -> Counts:
    for label, wnid in enumerate(wnids()):
        put(root / "train" / wnid / f"{wnid}_1.JPEG", label)
        put(root / "val" / wnid / f"ILSVRC2012_val_{label:08}.JPEG", label)
    torch.save(({wnid: (f"a {wnid}", "a synonym") for wnid in wnids()}, list(wnids())), root / "meta.bin")
    return {"train": 1000, "test": 1000}


def write_parquet(path: Path, labels: Sequence[Any], *, names: Sequence[str] | None = None, image: str = "image",
                  label: str = "label", colours: Sequence[int] | None = None, rows: int = 16) -> None:  # fmt: skip
    """Write a shard as Hugging Face's library does: struct{bytes, path}, class names in the schema's metadata."""
    structs = [{"bytes": encoded(c, "png"), "path": f"{n}.png"} for n, c in enumerate(colours or labels)]
    features: dict[str, Any] = {image: {"_type": "Image"}, label: {"dtype": "string", "_type": "Value"}}
    if names is not None:
        features[label] = {"names": list(names), "_type": "ClassLabel"}
    first = next(iter(labels), 0)
    kind = pa.string() if isinstance(first, str) else pa.bool_() if isinstance(first, bool) else pa.int64()
    schema = pa.schema(
        [(image, pa.struct([("bytes", pa.binary()), ("path", pa.string())])), (label, kind)],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({image: structs, label: list(labels)}, schema=schema), path, row_group_size=rows)


def huggingface(entry: DatasetEntry, root: Path) -> Counts:
    """Write the repository's shards, two for each split."""
    assert isinstance(entry.route, HuggingFaceRoute)
    if entry.route.layout == "class_folders":
        return class_folders(entry, root / "data", ".jpg")
    counts: Counts = {}
    names = None if isinstance(entry.class_names, tuple) else names_of(entry)
    for part, split in entry.route.splits.items():
        labels = labels_of(entry.classes, 5)
        halves = [labels[: len(labels) // 2 + 3], labels[len(labels) // 2 + 3 :]]
        paths = [f"data/{split}-{number:05}-of-00002.parquet" for number in range(2)]
        if part in entry.route.files:
            halves, paths = [labels], [entry.route.files[part]]
        for path, half in zip(paths, halves, strict=True):
            write_parquet(root / path, half, names=names)
        counts[part] = len(labels)
    return counts


def fer2013(entry: DatasetEntry, root: Path) -> Counts:
    """Write folders with the challenge's names of the emotions, in ``train`` and ``test``."""
    made = class_folders(entry, root / "train", ".jpg")
    class_folders(entry, root / "test", ".jpg")
    return {"train": sum(made.values()), "test": sum(made.values())}


def class_folders(
    entry: DatasetEntry, root: Path, suffix: str, above: Callable[[int], str] = lambda label: ""
) -> Counts:
    """Write five images of each class into ``root/above(label)/NAME``."""
    names = names_of(entry)
    for label, name in enumerate(names):
        for number in range(5):
            put(root / above(label) / name / f"{name} ({number}){suffix}", label)
    return {"all": 5 * len(names)}


def mlrsnet(entry: DatasetEntry, root: Path) -> Counts:
    lines(root / "Labels" / "thing_000.csv", ["image,airplane", "thing_000_00001.jpg,1"])
    return class_folders(entry, root / "Images", ".jpg")


def rsi_cb128(entry: DatasetEntry, root: Path) -> Counts:
    return class_folders(entry, root, ".tif", above=lambda label: f"super class {label % 6}")


def rsscn7(entry: DatasetEntry, root: Path) -> Counts:
    put(root / "overview.png", 0)
    lines(root / ".git" / "HEAD", ["ref: refs/heads/master"])
    return class_folders(entry, root, ".jpg")


def cub200(entry: DatasetEntry, root: Path) -> Counts:
    base = root / "CUB_200_2011"
    names = [f"{label + 1:03}.{'Black_footed_Albatross' if label == 0 else f'Bird_{label}'}" for label in range(200)]
    labels = labels_of(200, 3)
    files = [f"{names[label]}/{number}.jpg" for number, label in enumerate(labels)]
    for file, label in zip(files, labels, strict=True):
        put(base / "images" / file, label)
    lines(base / "classes.txt", (f"{label + 1} {name}" for label, name in enumerate(names)))
    lines(base / "images.txt", (f"{number + 1} {file}" for number, file in enumerate(files)))
    lines(base / "image_class_labels.txt", (f"{number + 1} {label + 1}" for number, label in enumerate(labels)))
    lines(base / "train_test_split.txt", (f"{number + 1} {int(number % 3 < 2)}" for number in range(600)))
    return {"train": 400, "test": 200}


def wnid_folders(top: str, suffix: str, step: int) -> Callable[[DatasetEntry, Path], Counts]:
    """Return a writer of every ``step``-th class of ImageNet."""

    def write(entry: DatasetEntry, root: Path) -> Counts:
        lines(root / top / "README.txt", ["images by WordNet id"])
        for label in range(0, 1000, step):
            put(root / top / wnids()[label] / f"a{suffix}", label)
        return {"train": 0, "test": 1000 // step}

    return write


def imagenet_v2(entry: DatasetEntry, root: Path) -> Counts:
    for label in range(1000):
        put(root / "imagenetv2-matched-frequency-format-val" / str(label) / "b.jpeg", label)
    return {"train": 0, "test": 1000}


WRITERS: dict[str, Callable[[DatasetEntry, Path], Counts]] = {
    **{writer.__name__: writer for writer in (
        dtd, gtsrb, mnist, svhn, stl10, oxford_pets, flowers102, food101, fer2013, rendered_sst2, emnist, fgvc_aircraft,
        cub200, country211, mlrsnet, rsi_cb128, rsscn7, imagenet, imagenet_v2,
    )},
    "cifar100": cifar, "cifar10": cifar, "fashionmnist": mnist, "kmnist": mnist, "emnist_balanced": emnist,
    "imagenet_a": wnid_folders("imagenet-a", ".jpg", step=5), "imagenet_r": wnid_folders("imagenet-r", ".jpg", step=5),
    "imagenet_sketch": wnid_folders("sketch", ".JPEG", step=1),
}  # fmt: skip
"""Writers by the names of the datasets; most have the name of their dataset."""


def write(entry: DatasetEntry, root: Path) -> Counts:
    """Write the dataset's files to ``root``; return the number of images of each part."""
    return WRITERS.get(entry.name, huggingface)(entry, root)
