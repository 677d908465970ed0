"""Finds the images, classes and parts in a folder of photographs, and says what in the folder is not used.

A part is a split such as ``train``. ``bolt.read_folder``, the commands ``adapt`` and ``data add``, and the datasets of
the catalog that are plain folders all use this module.
"""

import os
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from PIL import Image

from bolt.clip.picture_files import register_formats

PARTS = {
    "train": ("train", "training", "trainval", "trn"),
    "test": ("test", "testing", "tst"),
    "val": ("val", "valid", "validation", "vld", "dev"),
}
"""Part -> the usual names of its folder, in lower case."""

_NOT_PICTURES = frozenset({"BUFR", "EPS", "FITS", "GRIB", "HDF5", "MPEG", "PDF", "WMF"})
"""Formats that Pillow recognises but decodes only with other programs, if at all."""

_ALIKE = r"[\W_]*(?:set|data|dataset|images?|imgs?|split|folder)"
_NAMES_OF_PARTS = {part: re.compile(rf"(?:{'|'.join(names)})(?:{_ALIKE})*") for part, names in PARTS.items()}
"""Part -> pattern of its name: a usual name, then any number of words such as ``set``, as in ``training_set``."""

_PORTION = r"(?:fold|split|batch|chunk|shard)[\W_]*(?:\d+|[a-d](?![^\W\d_]))"

_LIKE_PARTS = re.compile(
    r"(?<![^\W\d_])(train[ab]?|training|trainset|trn|tr|test[ab]?|testing|testset|tst|te|val|valid|validation|vld|va"
    r"|eval|evaluation|dev|hold[\W_]?out|query|gallery|support|learn|calibration|pred|prediction|predictions|(?:un)?labell?ed"
    r"|entrenamiento|entra[iî]nement|apprentissage|treino|treinamento|addestramento"
    rf"|trainingsdaten|testdaten|validierung|pruebas?|teste|обучение|тест)(?![^\W\d_])|({_PORTION}|images?(?:[\W_]*part)?[\W_]*\d+)"
    r"|(训练|訓練|学習|학습|훈련)|(测试|測試|テスト|테스트)|(验证|驗證|検証|검증)"
)
"""Pattern of a folder's name that suggests a part: words such as ``train`` in several languages, or a numbered fold,
split or portion, such as ``fold_1`` and ``images_001``."""

_PICTURES = frozenset({"images", "image", "imgs", "img", "jpegimages", "pictures", "photos", "rgb"})
_ABOUT_PICTURES = frozenset({
    "labels", "label", "labeltxt", "masks", "mask", "annotations", "annotation", "annots", "imagesets",
    "segmentationclass", "segmentationobject", "groundtruth", "gt", "json", "xml", "xmls", "bboxes", "depth",
})  # fmt: skip
"""Names of folders with labels or masks, in datasets for detection and segmentation. Only the letters of a name are
compared, in lower case."""

_MASK = re.compile(
    r"(?<=.)[\W_](mask|seg|segmentation|label|gt|groundtruth|annotation|depth|disparity|heatmap|overlay)s?([\W_]*\d+)?$",
    re.I,
)
"""Matches the ending of a mask's name, such as ``_mask`` in ``cat_mask``; beside it is ``cat`` or, say, ``cat_rgb``."""

_SYSTEM_FOLDERS = frozenset({
    "__macosx", "__pycache__", "@eadir", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "~snapshot",
    "$recycle.bin", "recycler", "system volume information", "found.000", "lost+found", "lost.dir", "captureone",
    "temporary items", "network trash folder",
})  # fmt: skip
"""Folders that operating systems, network storage and photo programs make, in lower case."""

_PLUG_INS = {
    **dict.fromkeys((".heic", ".heics", ".heif", ".heifs", ".hif"), "pillow-heif"),
    ".jxl": "pillow-jxl-plugin", ".avif": "a newer pillow",
}  # fmt: skip
"""Suffix -> the package that lets Pillow read such files."""

_UNREAD = frozenset({
    *_PLUG_INS, ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".crw", ".nrw", ".pef", ".srw",
    ".rwl", ".x3f", ".3fr", ".gpr", ".exr", ".hdr", ".jxr", ".psb", ".dcm",
})  # fmt: skip
"""Suffixes of pictures that not every Pillow reads. A file that the installed Pillow reads counts as an image."""

ARCHIVES = frozenset({".zip", ".7z", ".rar", ".tar", ".tgz", ".gz", ".bz2", ".xz"})
"""Suffixes of archives. An archive may hold images, but is not opened here."""

_NOT_READ = ": not used, because Pillow does not read them; {}convert to JPEG"
_KINDS = {
    "mask": ("image", " that may be masks or depth maps, by name or folder: used like images; move them elsewhere"),
    "loose": ("image", " beside the folders of the classes: not used"),
    "hidden": ("image", " in hidden or system folders: not used"),
    "linked": ("link", " to folders: not used; give the linked folder itself"),
    "broken": ("broken link", ": not used; restore what the link points to"),
    "closed": ("folder", " without permission to read: not used"),
    "icloud": ("iCloud placeholder", ": not used; download the photographs first"),
    "archive": ("archive", ": not used; unpack those that hold images"),
    "other": ("file", " without an image suffix: not used"),
}
"""Kind of files or folders that are left out -> (noun, ending) of their line in :func:`unused_lines`."""


@cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes, in lower case, of every picture format that the installed Pillow reads."""
    register_formats()
    known = Image.registered_extensions().items()
    read = (Image.OPEN.keys() | {"MPO"}) - _NOT_PICTURES  # the reader of JPEG opens MPO
    return frozenset(suffix for suffix, kind in known if kind in read)


def is_image(path: Path) -> bool:
    """Return whether a file has the suffix of an image. Hidden files do not count: systems put them beside images."""
    return path.suffix.lower() in image_suffixes() and not path.name.startswith(".")


def is_system(name: str) -> bool:
    """Return whether a folder with this name is hidden, or belongs to an operating system or a program."""
    return name.startswith(".") or name.casefold() in _SYSTEM_FOLDERS


def class_folders(folder: Path) -> list[Path]:
    """List the sub-folders, sorted, without hidden folders, system folders and links to an enclosing folder."""
    found = (path for path in folder.iterdir() if path.is_dir() and not is_system(path.name))
    return sorted(path for path in found if not (path.is_symlink() and folder.resolve().is_relative_to(path.resolve())))


def images_in(folder: Path) -> list[Path]:
    """List the images directly in a folder, sorted."""
    return sorted(path for path in folder.iterdir() if path.is_file() and is_image(path))


def images_below(folder: Path) -> list[Path]:
    """List the images in a folder and its sub-folders, sorted. Hidden and system folders are left out."""
    return sorted(iterate_images(folder))


def iterate_images(folder: Path, unused: Counter[str] | None = None) -> Iterator[Path]:
    """Yield the images in a folder and its sub-folders, one folder after the other.

    Images in hidden and system folders are left out. A broken link is yielded, so that opening the link says what is
    wrong. ``unused`` counts what is left out, by kind, for :func:`unused_lines`. Hidden files are not counted, except
    iCloud's placeholders for files that are not on this machine.
    """
    left = Counter[str]() if unused is None else unused

    def count_closed(error: OSError) -> None:
        left["closed"] += 1

    for place, folders, files in os.walk(folder, onerror=count_closed):
        folders[:] = [name for name in sorted(folders) if unused is not None or not is_system(name)]
        inside = any(map(is_system, Path(place).relative_to(folder).parts))
        left["linked"] += sum(not inside and Path(place, name).is_symlink() for name in folders)
        left["icloud"] += sum(not inside and name.startswith(".") and name.endswith(".icloud") for name in files)
        for path in (Path(place, name) for name in sorted(files) if not name.startswith(".")):
            image = is_image(path) and (path.is_file() or not path.exists())
            if image and not inside:
                yield path
            elif inside:
                left["hidden"] += image
            else:
                left[_kind_of_other(path)] += 1


def unused_lines(unused: Counter[str]) -> list[str]:
    """Return a line for each kind of files and folders that :func:`iterate_images` left out, with their number."""
    plug_ins = {kind: f"install {package}, or " for kind, package in _PLUG_INS.items()}
    pictures = (kind for kind in sorted(unused) if kind.startswith("."))
    suffixes = {kind: (f"{kind} file", _NOT_READ.format(plug_ins.get(kind, ""))) for kind in pictures}
    kinds = {"hidden": _KINDS["hidden"], **suffixes, **_KINDS}
    return [f"{_count(unused[kind], noun)}{rest}" for kind, (noun, rest) in kinds.items() if unused[kind]]


def unused_in(folder: Path) -> list[str]:
    """Return the lines of :func:`unused_lines` for a folder and its sub-folders."""
    unused = Counter[str]()
    deque(iterate_images(folder, unused), maxlen=0)
    return unused_lines(unused)


def how_to_lay_out(folder: Path) -> str:
    """Return advice for the owner of a folder that has no class folders."""
    packed = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in ARCHIVES)
    return f"unpack {packed[0]} first" if packed else "put the images of each class into a folder of its own"


def part_folders(folder: Path) -> dict[str, Path]:
    """Return part -> the sub-folder with its class folders; the parts are ``train``, ``test``, ``val`` and ``all``.

    A folder's name need not be the name of its part: ``Training Images`` is ``train``. A part has no images beside its
    class folders.
    """
    parts: dict[str, Path] = {}
    for child in sorted(class_folders(folder), key=lambda path: (len(path.name), path)):
        name = "all" if child.name == "all" else part_of(child.name)
        if name is not None and class_folders(child) and not images_in(child):
            parts.setdefault(name, child)
    return parts


def why_no_classes(names: Sequence[str]) -> str:
    """Return why folders with these names are no classes; an empty text if they may be classes.

    They are no classes if two names mean different parts of a split, such as ``train`` and ``test``, or if ``images``
    is beside ``labels`` or ``masks``. If any name has no such meaning, all folders may be classes: ``train`` beside
    ``bus`` is a class.
    """
    found = [_LIKE_PARTS.search(unicodedata.normalize("NFC", name).casefold()) for name in names]
    plain = [_letters(name) for name in names]
    others = {text for text, part in zip(plain, found, strict=True) if not part}
    if not others <= _PICTURES | _ABOUT_PICTURES:
        return ""
    shown = ", ".join(f"{name}/" for name in names[:4])
    if len({part[0] for part in found if part}) > 1:
        return f"{shown} look like parts of a split, not like classes"
    if others & _PICTURES and others & _ABOUT_PICTURES:
        return f"{shown} look like images and their labels or masks, not like classes"
    return ""


def _letters(name: str) -> str:
    return re.sub(r"[\W\d_]", "", name.casefold())


def why_no_class_folders(folders: Iterable[Path]) -> str:
    """Return why these folders are not classes; an empty text if they may be classes.

    The reason comes from the names of these folders or, if they give none, from the names of a folder's sub-folders.
    A class that holds only numbered portions, such as ``batch_1``, is no reason.

    A folder is often a second copy of the dataset if two of its sub-folders have the names of folders beside it. A
    sub-folder does not count if the folder beside it of the same name has such sub-folders, too. The names then mean
    something else, such as persons 1 to 3 in each of the classes 1 to 5.
    """
    names = {path.name: [each.name for each in class_folders(path)] for path in folders}
    named = {name: inner for name, inner in names.items() if not all(map(is_portion, inner))}
    inside = [f"in {name}/, {wrong}" for name, inner in named.items() if (wrong := why_no_classes(inner))]
    for name, inner in names.items():
        if len(again := [each for each in inner if each in names and names.keys().isdisjoint(names[each])]) > 1:
            inside.append(f"{name}/ holds {again[0]}/ and {again[1]}/, which are beside it too: move {name}/ elsewhere")
    return next(filter(None, [why_no_classes([*names]), *inside]), "")


def part_of(name: str) -> str | None:
    """Return the part that a name means, such as ``train`` for ``Training Set``; ``None`` if it means no part."""
    return next((part for part, names in _NAMES_OF_PARTS.items() if names.fullmatch(name.casefold())), None)


def is_portion(name: str) -> bool:
    """Return whether a folder's name means a numbered portion of the images: ``batch_1``, a camera's ``100CANON``."""
    return re.fullmatch(_PORTION + r"|[1-9]\d\d[^\W\d]\w{4}", name.casefold()) is not None


def dataset_folder(folder: Path) -> Path:
    """Return the folder that holds the parts: ``folder``, or its only sub-folder if the parts are in that one."""
    inner = class_folders(folder)
    if len(inner) == 1 and not images_in(folder) and part_of(inner[0].name) is None and part_folders(inner[0]):
        return inner[0]
    return folder


def unused_notes(folder: Path, used: Iterable[Path]) -> list[str]:
    """Return notes on the sub-folders and files of a dataset's folder that are not used, with counts.

    Further notes tell whether the images of classes lie in sub-folders, which may be the classes or may be set aside.

    ``used``: the folders that hold the class folders: ``folder`` itself or folders in it.
    """
    inner, roots, unused = dataset_folder(folder).resolve(), [path.resolve() for path in used], Counter[str]()
    left = [path for path in class_folders(inner) if inner not in roots and path.resolve() not in roots]
    numbers = {path: sum(1 for _ in iterate_images(path, unused)) for path in left}
    notes = [f"{_shown(path)}/ is not used: {_count(number, 'image')}" for path, number in numbers.items()]
    for place in {folder.resolve(), inner, *roots}:
        folders = class_folders(place)
        for path in place.iterdir():
            if path.is_dir() and is_system(path.name):
                unused["hidden"] += 0 if path.is_symlink() else len(images_below(path))
            elif path.is_dir():
                unused["linked"] += path not in folders  # ``folders`` lacks only links to an enclosing one
            elif not path.name.startswith("."):
                unused["loose" if is_image(path) else _kind_of_other(path)] += 1
    nested, mixed = list[Path](), list[Path]()
    for top in (path for root in roots for path in class_folders(root)):
        stems = {path.with_suffix("") for path in iterate_images(top, unused)}
        named = (path for path in stems if _MASK.search(path.name))
        ends = ("", "_rgb", "_color", "_image")
        masks = {path for path in named if any(path.with_name(_MASK.sub(end, path.name)) in stems for end in ends)}
        about = {path.parent for path in stems} - {top}
        about = {place for place in about if _letters(place.name) in _ABOUT_PICTURES or _MASK.search(place.name)}
        if _MASK.search(top.name) and (pictures := top.with_name(_MASK.sub("", top.name))).is_dir():
            known = {_MASK.sub("", path.stem) for path in iterate_images(pictures)}
            if 2 * len([path for path in stems if _MASK.sub("", path.name) in known]) > len(stems):
                about.add(top)
        masks |= {path for path in stems if not about.isdisjoint(path.parents)}
        unused["mask"] += len(masks)
        below = [path for path in stems - masks if path.parent != top]
        if stems and not any(path.parent == top for path in stems):
            nested.append(top)
        elif below:
            mixed += sorted(below)
    if nested:
        inside = [_shown(path) for path in class_folders(nested[0])]
        notes.append(
            f"class folders whose images lie in sub-folders: {len(nested)}, such as {_shown(nested[0])} with "
            f"{', '.join(inside[:2])}{', ...' * (len(inside) > 2)}; if the sub-folders are the classes, put them side "
            "by side"
        )
    if mixed:
        what = f"{_count(len(mixed), 'image')} in sub-folders beside images of their class: used like these, such as "
        notes.append(f"{what}{_shown(mixed[0].parent.parent)}/{_shown(mixed[0].parent)}/")
    return notes + unused_lines(unused)


def _shown(path: Path) -> str:
    return path.name if path.name.isprintable() else ascii(path.name)[1:-1]


def _kind_of_other(path: Path) -> str:
    """Return the kind of a file that is not read: ``broken``, the suffix of a picture, ``archive``, or ``other``."""
    suffix = path.suffix.lower()
    if not path.exists():
        return "broken"
    return suffix if suffix in _UNREAD else "archive" if suffix in ARCHIVES else "other"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
