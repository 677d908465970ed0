"""Read datasets with torchvision's classes. The checksums of files are not computed, and no image is decoded.

torchvision computes the checksums of whole files whenever it opens a dataset (170 MB for CIFAR, 3 GB for STL10).
``data prepare`` has checked them once. The checksums also protect against a pickle that runs code. CIFAR's pickles are
therefore scanned before they are opened.
"""

import pickletools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import TorchvisionRoute
from orchestrator.datasets.part import Contents, Part, make_part, numbered_classes, refetch_hint
from orchestrator.util.errors import UserError, explained

CHECKSUM = re.compile(r"[0-9a-f]{32}")

ARRAY_PICKLE = frozenset(
    f"{module} {name}"
    for module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
    for name in ("_reconstruct", "ndarray", "dtype")
) | {"_codecs encode"}
"""The classes and functions that a pickle of arrays and lists needs. A pickle that names any other is refused."""


def read_torchvision(entry: DatasetEntry, folder: Path) -> Contents:
    """Read the dataset in ``folder`` with a class of ``torchvision.datasets``.

    For each part, the route has one or more sets of arguments. The class is called once with each set, and the images
    of a part's sets are joined.

    Raises ``UserError`` for a class that torchvision does not have, and for files that are missing or unreadable.
    """
    route = entry.route
    assert isinstance(route, TorchvisionRoute)
    reader = _reader(route.dataset)
    parts: dict[str, Part] = {}
    names: list[str] | None = None
    for name, argument_sets in route.arguments.items():
        pieces = []
        for arguments in argument_sets:
            what = f"torchvision's {route.dataset}({_shown(arguments)}) cannot be read"
            # For damaged files, parsers raise errors of many classes.
            with explained(Exception, what=what, where=str(folder), hint=refetch_hint(entry)):
                if route.dataset.startswith("CIFAR"):
                    for file in (reader.meta["filename"], *(file for file, _ in reader.train_list + reader.test_list)):
                        refuse_foreign_pickle(folder / reader.base_folder / file)
                dataset = reader(root=str(folder), **arguments)
            found = _class_names(dataset)
            if found is not None and names not in (None, found):
                raise UserError("the parts, such as train and test, do not have the same classes", where=str(folder))
            names = found or names
            pieces.append(_piece(dataset, route, folder, arguments))
        parts[name] = _joined(pieces)
    if names is None:
        names = numbered_classes(entry, (int(part.labels.max(initial=-1)) for part in parts.values()), folder)
    return names, parts


def torchvision_class(name: str) -> type[Any]:
    """Return a class of ``torchvision.datasets``. Raises ``UserError`` for an unknown name."""
    import torchvision.datasets

    found: type[Any] | None = getattr(torchvision.datasets, name, None)
    if found is None:
        raise UserError(f"torchvision has no dataset class {name!r}")
    return found


def _reader(name: str) -> type[Any]:
    """Return a subclass of torchvision's class that checks no checksums and unpacks no archives.

    Raises ``UserError`` for an unknown name.
    """
    original = torchvision_class(name)
    fields: dict[str, Any] = {}
    for base in reversed(original.__mro__):
        for key, value in vars(base).items():
            if isinstance(value, list | tuple | dict) and (blank := _without_checksums(value)) != value:
                fields[key] = blank
    if name == "ImageNet":
        fields["parse_archives"] = _refuse_archives
    return type(original.__name__, (original,), fields)  # torchvision makes paths of the name


def _without_checksums(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_checksums(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_checksums(inner) for inner in value)
    return None if isinstance(value, str) and CHECKSUM.fullmatch(value) else value


def _refuse_archives(dataset: Any) -> None:
    """Raise ``FileNotFoundError`` in place of torchvision's unpacking, which would write 150 GB."""
    for path in (Path(dataset.root) / "meta.bin", Path(dataset.split_folder)):
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there")


def refuse_foreign_pickle(path: Path) -> None:
    """Scan a pickle of protocol 2, as CIFAR's are, without running it.

    Raises ``ValueError`` when the pickle names a class or function that arrays do not need, or hides such a name.
    """
    for opcode, argument, _ in pickletools.genops(path.read_bytes()):
        if opcode.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
            raise ValueError(f"{path.name} is not the original pickle")
        if opcode.name == "GLOBAL" and argument not in ARRAY_PICKLE:
            raise ValueError(f"{path.name} is a pickle that calls {argument}; the original holds arrays only")


def _class_names(dataset: Any) -> list[str] | None:
    """Return the class names in label order, or ``None`` if torchvision has none.

    torchvision has several names for a class of ImageNet. The first is taken.
    """
    names: Sequence[Any] | None = getattr(dataset, "classes", None)
    return None if names is None else [name if isinstance(name, str) else name[0] for name in names]


def _piece(dataset: Any, route: TorchvisionRoute, folder: Path, arguments: Mapping[str, Any]) -> Part:
    """Make a part of a dataset that torchvision has opened with ``arguments``.

    Labels and files come from torchvision's own lists, so that no image is decoded.
    """
    samples = _first_of(dataset, "samples", "_samples") or ()
    labels = _first_of(dataset, "targets", "_labels", "labels")
    # A dataset without files is an array of pixels.
    files = _first_of(dataset, "_image_files", "_images") or [path for path, _ in samples]

    def read(index: int) -> Image.Image:
        image: Image.Image = dataset[index][0]
        return image.transpose(Image.Transpose.TRANSPOSE) if route.transpose else image

    def origin(index: int) -> str:
        if not files:
            return f"{route.dataset}({_shown(arguments)})[{index}]"
        return Path(files[index]).relative_to(folder).as_posix()

    return make_part([label for _, label in samples] if labels is None else labels, read, origin)


def _joined(parts: Sequence[Part]) -> Part:
    """Join the images of several parts, in their order."""
    images = [(part, index) for part in parts for index in range(len(part))]
    labels = np.concatenate([part.labels for part in parts])
    return make_part(labels, lambda i: images[i][0].source(images[i][1]), lambda i: images[i][0].origin(images[i][1]))


def _first_of(dataset: Any, *names: str) -> Any:
    """Return the first of the named attributes that is not ``None``; ``None`` if the dataset has no such attribute."""
    return next((getattr(dataset, name) for name in names if getattr(dataset, name, None) is not None), None)


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in arguments.items())
