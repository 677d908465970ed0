"""Recognise the layout of a user's images: ``train/`` and ``test/``, class folders side by side, or a table.

The result is what a catalog entry needs: the route (where the files are and how to read them), the split recipe and the
class names. No image is decoded.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bolt.image_folders import (
    ARCHIVES,
    PARTS,
    class_folders,
    dataset_folder,
    how_to_lay_out,
    images_below,
    images_in,
    is_image,
    is_portion,
    iterate_images,
    part_folders,
    part_of,
    unused_notes,
    why_no_class_folders,
    why_no_classes,
)
from orchestrator.catalog.routes import TABLES
from orchestrator.datasets.routes.class_folders import refuse_untested
from orchestrator.datasets.routes.manifest import marked_classes, paths_and_labels, read_table
from orchestrator.datasets.routes.table_files import find_files
from orchestrator.datasets.routes.tar_shards import folder_of, is_table, part_in
from orchestrator.datasets.series import group_notes, series_notes, table_rows
from orchestrator.util.errors import UserError, shorten, unknown_name
from orchestrator.util.units import listed

COLUMNS: dict[str, tuple[str, ...]] = {
    "path": ("path", "file_path", "filepath", "image_path", "file", "filename", "file_name", "image", "image_name",
             "img", "image_id", "id"),
    "label": ("label", "class", "class_name", "label_name", "category", "cls", "target", "y",
              "labels", "classes", "class_id", "classid", "label_id", "category_name", "category_id", "choice"),
    "split": ("split", "part", "subset", "fold"),
}  # fmt: skip
"""What a column holds -> its usual names, in lower case with underscores. The first name that a table has is used."""

SHOWN = 6

_TO_PARQUET = "write it as parquet first: datasets.load_from_disk(FOLDER)['train'].to_parquet(FILE)"

_MARKS_PART = re.compile(
    r"(((is|in|used?|for|or)[\W_]*)*(train|test|val|dev|eval|hold[\W_]?out)(ing|id|idation|uation)?[\W_]*)+"
    r"((set|image|img|split|flag|data)[\W_]*)?", re.I
)  # fmt: skip
_NUMBERS_PARTS = re.compile(r"((data|eval)[\W_]*)?(split|partition|subset)[\W_]*(id|no|number)?", re.I)
_OTHER_PART = re.compile("test|val|dev|holdout")
_LEFT_OUT = re.compile(r"(is[\W_]*)?(reject|ignor|skip|exclud|discard|delet|invalid)\w*", re.I)
_YES_NO = {"0", "1", "0.0", "1.0", "true", "false", "yes", "no"}

_OF_IMAGES = re.compile("path|file|name|image|img|photo|pic", re.I)
_OF_MASKS = re.compile("mask|seg|annot|label|truth|gt|depth|box|xml", re.I)
"""Pattern of a column that names a second file for each image, as ``label_path`` does."""

_NESTED = re.compile(r"""[\[{]\s*(["'\d].*)?[\]}]""", re.DOTALL)
"""Matches a list or an object of Python or JSON, such as ``['cat']``, but not a text in brackets."""

_FOREIGN_BYTES = re.compile("[\ud800-\udfff]")
"""Lone surrogates: Python writes them for the bytes of a file name that are not UTF-8."""


class Layout(NamedTuple):
    """The layout of a folder or table of images.

    Attributes:
        data_root: the folder to pass as ``--data-root``.
        route: the fields of the catalog entry's route.
        recipe: the split recipe of the catalog entry.
        names: the class names in the data.
        notes: remarks about files that are not used.
        licence: the terms of the images, if they are known.
        parts: name of a part (``train`` and ``test``, or ``all``) -> the folder that holds its class folders; empty for
            a table.
    """

    data_root: Path
    route: Mapping[str, Any]
    recipe: str
    names: tuple[str, ...]
    notes: tuple[str, ...]
    licence: str = ""
    parts: Mapping[str, Path] = {}


def find_layout(path: Path, columns: Mapping[str, str] | None = None) -> Layout:
    """Return the layout of a folder or a table of images.

    ``columns``: the table's columns that the user names: ``path``, ``label`` or ``split`` -> the column's name.

    Raises ``UserError`` if the path does not exist, the folder has no class folders, a part is missing, the table
    cannot be read, or there are fewer than two classes.
    """
    path = Path(os.path.abspath(path))
    if is_table(path):
        return _of_table(path, columns or {})
    if columns:
        raise UserError(f"{path} is a folder, which has no columns", where="--column", hint="give the table in it")
    return folder_layout(path)


def _checked(layout: Layout, path: Path) -> Layout:
    """Return the layout. Raises ``UserError`` for a class name that is not UTF-8, and for fewer than two classes."""
    if foreign := next(filter(_FOREIGN_BYTES.search, layout.names), None):
        what = f"the name of the class folder {foreign!a} is not UTF-8"
        raise UserError(what, where=str(path), hint="rename the folder")
    if len(layout.names) < 2:
        raise _one_class(layout.names[0], path, "put the images of each class into a folder of its own, side by side")
    return layout


def _one_class(name: str, place: Path, hint: str) -> UserError:
    what = f"there is only one class, {name!r}; classification needs at least two"
    return UserError(what, where=str(place), hint=hint)


def folder_layout(given: Path, *, tested: bool = True) -> Layout:
    """Return the layout of a folder of images.

    If ``tested`` is false, the folder may lack a test part, and no note says that pictures of one series may be in both
    the training and the test part.

    Raises ``UserError`` as :func:`find_layout`.
    """
    if not given.is_dir() or given == Path(given.anchor):
        what = f"{given} is no folder of images" if given.exists() else f"there is no folder {given}"
        tables = ", or a table" if tested else "; `data add` takes a table, too"
        raise UserError(what, hint=f"give a folder with one folder of images per class{tables}")
    folder = dataset_folder(given)
    found = part_folders(folder)
    others = [path for path in class_folders(folder) if path not in found.values()]
    if datasets := [path for path in others if {"train", "test"} & part_folders(path).keys()]:
        what = f"{datasets[0].name}/ has train/ or test/ in it: this looks like a folder of datasets, not of classes"
        raise UserError(what, where=str(folder), hint="give one dataset: " + ", or ".join(map(str, datasets[:4])))
    parts: dict[str, Path] = {name: found[name] for name in ("train", "test") if name in found}
    if len(parts) == 1 and (tested or "train" not in parts):
        here, missing = ("train", "test") if "train" in parts else ("test", "train")
        if lacking := [path for path in others if part_of(path.name) == missing]:
            hint = "sort its images into folders of the classes"
            hint += f", or give {parts[here]} alone for an 80/20 split" * (tested and here == "train")
            what = f"{lacking[0].name}/ has no class folders, but {parts[here].name}/ has"
            if class_folders(lacking[0]):
                what = f"{lacking[0].name}/ has images beside its class folders"
            raise UserError(what, where=str(folder), hint=hint)
        beside = [path.name for path in others[:6]]
        beside += [path.name for name, path in found.items() if name not in (here, "all")]
        what = f"there is {parts[here].name}/ but no {missing}/"
        what += f"; the other folders are {', '.join(beside)}" if beside else ""
        hint = f"rename the folder that holds the {missing} images to {missing}, or put all class folders side by side"
        raise UserError(what, where=str(folder), hint=hint + " for an 80/20 split" * tested)
    recipe = "official" if parts else "eighty_twenty"
    if not parts and (folder / "all").is_dir() and "all" not in found:
        raise UserError("a class folder cannot be called 'all'", where=str(folder), hint="rename the folder")
    parts = parts or {"all": found.get("all", folder)}
    names, route = tuple(path.name for path in _classes(parts, folder)), {"kind": "folder", "folder": folder.name}
    if "test" in parts:
        refuse_untested(names, [path.name for path in class_folders(parts["test"])], folder)
    notes = unused_notes(given, parts.values())
    with suppress(OSError):  # the folder above cannot be read
        if part_of(folder.name) == "train" and (tests := part_folders(folder.parent).get("test")):
            notes.append(f"{tests.name}/ beside {folder.name}/ is not used; to use both, give {folder.parent}")
    if tested or "test" in parts:
        notes += series_notes({
            part: [(path.name, image.relative_to(path)) for path in class_folders(root) for image in images_below(path)]
            for part, root in parts.items()
        })  # fmt: skip
    return _checked(Layout(folder.parent, route, recipe, names, tuple(notes), parts=parts), given)


def _classes(parts: Mapping[str, Path], folder: Path) -> list[Path]:
    """Return the class folders of the first part.

    Raises ``UserError`` if there are fewer than two class folders, or if the folders are not classes. The advice names
    a table in the folder, if there is one, because it may list the classes of the images.
    """
    root = next(iter(parts.values()))
    classes = class_folders(root)
    wrong = why_no_class_folders(classes)
    if len(classes) > 1 and not wrong:
        return classes
    readable = [place for place in (folder, *class_folders(folder)) if os.access(place, os.R_OK)]
    files = [path for place in readable for path in place.iterdir()]
    kinds = {path.suffix.lower() for path in files}
    tables = (path for path in files if path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".parquet"))
    table = min(tables, key=lambda path: ("train" not in f"{path.parent.name}/{path.name}", path), default=None)
    hint = _TO_PARQUET if ".arrow" in kinds else how_to_lay_out(folder)
    hint += f"; if the tar files are shards of WebDataset, give all: data add {folder}/*.tar" * (".tar" in kinds)
    if table:
        same = sorted(path for path in files if path.name == table.name and part_in(path.parent.name)) or [table]
        every = shlex.join(map(str, same))
        if table.suffix == ".parquet" and len(same) == 1:  # the parts and shards of a dataset lie side by side
            every = f"{shlex.quote(str(table.parent))}/*.parquet"
        hint += f"; if {table.name} lists the images' classes: data add {every}"
    if wrong:
        before = "classes are in train/CLASS/ and test/CLASS/, or side by side: "
        raise UserError(wrong, where=str(root), hint=before + hint)
    if not classes:
        loose = len(images_in(folder))
        what = "the folder holds " + (f"{loose} images and " if loose else "") + "no class folders"
        raise UserError(what, where=str(folder), hint=hint)
    if (inner := [path.name for path in class_folders(classes[0])]) and not images_in(classes[0]):
        remedy = "move them one folder up" if "train" in parts else f"give {classes[0]}"
        hint = f"if its sub-folders ({listed(inner, SHOWN)}) are the classes, {remedy}"
    raise _one_class(classes[0].name, root, hint)


def _of_table(path: Path, given: Mapping[str, str]) -> Layout:
    if path.suffix.lower() not in TABLES:
        hints = {".arrow": _TO_PARQUET, **dict.fromkeys(ARCHIVES, "unpack it, and give the folder")}
        hint = hints.get(path.suffix.lower(), "save a spreadsheet as CSV in UTF-8, and arrays as image files")
        what = f"{path.name} is neither a folder nor a table ({', '.join(TABLES)})"
        raise UserError(what, where=str(path), hint=hint)
    folder = folder_of(path)
    columns, notes, readers = read_table(path)
    if unknown := next((name for name in given.values() if name not in columns), None):
        raise unknown_name("column", unknown, columns, where=f"--column, table {path}")
    chosen, remarks = choose_columns(columns, given, path)
    paths, labels = paths_and_labels(columns, chosen, path)
    for key, texts in (("path", paths), ("label", labels)):
        if nested := next(filter(_NESTED.fullmatch, texts), None):
            what = f"the {key} {shorten(nested)} is a list or an object"
            raise UserError(what, where=str(path), hint=f"write one text as the {key} of each image")
    parts = [part_of(text) for text in columns[chosen["split"]]] if "split" in chosen else ["all"] * len(labels)
    files = paths if readers else find_files(paths, labels, folder, path, parts)
    if moved := next((pair for pair in zip(paths, files, strict=True) if pair[0] != pair[1]), None):
        notes.append(f"{moved[0]} is read as {moved[1]}, and the other paths likewise")
    if not readers and (left_out := len(set(map(str, images_below(folder))) - {str(folder / file) for file in files})):
        notes.append(f"images that the table does not list: {left_out}, not used")
    tops = [] if readers or "split" in chosen else sorted({file.partition("/")[0] for file in files if "/" in file})
    if mixed := why_no_classes(tops):
        notes.append(f"{mixed}; the table's images in them are used alike")
    used = chosen.values() if "label" in chosen else [*chosen.values(), *marked_classes(columns)]
    others = {name: columns[name] for name in columns if name not in used}
    stems = [Path(file).stem for file in files] if all(map(str.isdecimal, paths)) and "path" not in given else paths
    rivals = [n for n, texts in others.items() if texts not in (paths, stems) and {*texts} in ({*paths}, {*stems})]
    if paths != stems and rivals:  # one column may number the rows, and the other the images
        what = f"the images may be those of {chosen['path']!r} or of {rivals[0]!r}"
        raise _doubtful("path", what, [chosen["path"], rivals[0]], path)
    named = [os.path.basename(file) for file in files] if readers else files  # a shard is no series
    notes += group_notes(others, labels, parts) or series_notes(table_rows(parts, labels, named))
    if "split" not in chosen and (tests := _tests_beside(path)):
        notes.append(f"{tests} is not used; if it has the test images, give one table of both parts, or all tables")
    if validation := parts.count("val"):
        notes.append(f"rows of the validation split: {validation}, not used")
    names = sorted({label for label, part in zip(labels, parts, strict=True) if part != "val"})
    route = {"kind": "manifest", "folder": folder.name, "file": path.relative_to(folder).as_posix(), "columns": chosen}
    recipe = "official" if "split" in chosen else "eighty_twenty"
    return _checked(Layout(folder.parent, route, recipe, tuple(names), (*notes, *remarks)), path)


def _tests_beside(table: Path) -> str:
    """Return the name of a table or folder of test images that belongs to a table of training images, or ``""``."""
    beside = [*table.parent.glob(f"*{table.suffix}")] if part_in(table.stem) == "train" else []
    if part_of(table.parent.name) == "train":
        beside += class_folders(table.parent.parent)
    return next((path.name for path in sorted(beside) if part_in(path.stem) == "test"), "")


def choose_columns(
    columns: Mapping[str, list[str]], given: Mapping[str, str], table: Path
) -> tuple[dict[str, str], list[str]]:
    """Choose the columns with the paths, the labels and the splits of the images, and return remarks on the choice.

    The choice is a mapping: ``path``, ``label`` or ``split`` -> name of the column. A column that the user has
    ``given`` is taken, or else a column with a usual name. If there is none, the values decide. Paths are in a column
    in which every value is an image file. Splits are in a column in which every value names a part, such as ``train``.
    Labels are in the remaining column, if only one remains.

    Raises ``UserError`` if two columns may have the paths, or the labels, or if a column of yes and no seems to state
    the split.
    """
    plain = {re.sub(r"[\s.-]+", "_", name.casefold()): name for name in reversed([*columns])}
    usual = {key: [plain[name] for name in names if name in plain] for key, names in COLUMNS.items()}
    chosen, notes = dict(given), list[str]()
    pictures = [name for name, texts in columns.items() if texts and all(is_image(Path(text)) for text in texts)]
    pictures = [name for name in pictures if "://" not in "".join(columns[name])] or pictures
    if "x" in plain and plain["x"] not in pictures:  # then ``y`` is a coordinate
        usual["label"] = [name for name in usual["label"] if name != plain.get("y")]
    paths = [name for name in usual["path"] if name in pictures or name == plain.get("path")]
    paths = paths or [name for name in usual["path"] if not all(map(str.isdecimal, columns[name]))]
    if pictures and not paths and "path" not in given:
        paths = [_column_of_images(usual["path"], pictures, columns, table)]
    for name in [*paths, *usual["path"]][:1]:
        chosen.setdefault("path", name)
    of_parts = [name for name, texts in columns.items() if {"train", "test"} <= {*map(part_of, texts)} <= {*PARTS}]
    for name in [*usual["split"], *of_parts][:1]:
        if name.casefold() == "split" or any(map(part_of, columns[name])):  # a column ``fold`` may have numbers only
            chosen.setdefault("split", name)
    rest = [name for name in columns if name and name not in chosen.values()]
    texts = {name: {*map(str.casefold, columns[name])} for name in rest if name not in usual["label"]}
    named = {name: [re.sub(r"\d", "", text) for text in values] for name, values in texts.items()}  # no img_1, img_2
    said = [name for name, values in texts.items() if (_MARKS_PART.fullmatch(name) and values <= _YES_NO)
            or (_NUMBERS_PARTS.fullmatch(name) and 1 < len(values) < 5 and all(map(str.isdecimal, values)))
            or (len(values) < 9 and not any(map(is_portion, values)) and "split" in why_no_classes(named[name]))
            or ("train" in map(part_of, values) and any(map(_OTHER_PART.search, values)))]  # fmt: skip
    marks = marked_classes(columns)
    for name in usual["label"][:1]:  # columns of 0 and 1 are classes only if it numbers the same classes
        rows = {*zip(columns[name], *(columns[mark] for mark in marks), strict=True)}
        numbers = len(rows) == len(marks) == len({*columns[name]}) and all(map(str.isdecimal, columns[name]))
        marks = marks if numbers or name in marks else []
    if said and "split" not in chosen and not marks:
        hint = "write a column 'split' with the values train and test, or remove this column for an 80/20 split"
        hint += f"; if it has the classes: {shlex.join(['--column', f'label={said[0]}'])}" * ("label" not in chosen)
        raise UserError(f"the column {said[0]!r} seems to say which rows are for training", where=str(table), hint=hint)
    if "label" not in chosen and not marks:
        for name in ([name for name in usual["label"] if name in rest] or rest * (len(rest) == 1))[:1]:
            chosen["label"] = _column_of_names(name, {name: columns[name] for name in rest}, usual["label"], table)
            if chosen["label"] != name:
                pairs = dict(zip(columns[name], columns[chosen["label"]], strict=True))
                notes.append(f"{name} has numbers: " + listed([f"{n} is {word}" for n, word in pairs.items()], SHOWN))
    if any(key != name for key, name in chosen.items()):
        notes.append("columns: " + ", ".join(f"{key} from {name!r}" for key, name in chosen.items()))
    if "label" not in chosen and marks:
        notes.append(f"the class of a row is the column in which the row has a 1: {listed(marks, SHOWN)}")
        rest = [name for name in rest if name not in marks]
    if unused := [name for name in rest if name not in chosen.values()]:
        notes.append(f"columns that are not used: {listed(unused, SHOWN)}")
    values = {name: {*columns[name]} for name in unused}
    marked = [name for name in unused if len(values[name]) > 1 and any(map(_LEFT_OUT.fullmatch, (name, *values[name])))]
    notes += [f"the column {name!r} may say which images to leave out: remove their rows" for name in marked]
    return chosen, notes


def _column_of_images(
    numbers: Sequence[str], pictures: Sequence[str], columns: Mapping[str, list[str]], table: Path
) -> str:
    """Return the column with the paths: one of ``pictures``, or of ``numbers``, which may name files without suffix.

    Numbers are taken if they name files that are there, and no column of pictures does. Otherwise a single column of
    pictures is taken. Its name must not suggest masks if there are numbers, and it must suggest images, as ``photo``
    does, if numbers name files too.

    Raises ``UserError`` if several columns may have the paths, such as numbers and the names of masks.
    """
    files = iterate_images(folder_of(table)) if numbers else ()
    there = {name.casefold() for file in files for name in (file.name, file.stem)}
    found = [name for name in (*numbers, *pictures)
             if not there.isdisjoint(re.split(r"[/\\]", text)[-1].casefold() for text in columns[name])]  # fmt: skip
    numbered = [name for name in numbers if name in found]
    if numbered and numbered == found:
        return numbered[0]
    masks = [name for name in pictures if _OF_MASKS.search(name)]
    if len(pictures) == 1 and not (masks and numbers) and (not numbered or _OF_IMAGES.search(pictures[0])):
        return pictures[0]
    doubtful = [*(numbered or [*numbers][: len(masks)])[:1], *pictures]
    raise _doubtful("path", f"several columns may name images: {', '.join(map(repr, doubtful))}", doubtful, table)


def _column_of_names(label: str, others: Mapping[str, list[str]], usual: Sequence[str], table: Path) -> str:
    """Return the column with the class names.

    It is the column ``label`` unless this column has numbers and one other column has a name for each number.

    Raises ``UserError`` if several columns may have the names.
    """
    numbers = re.compile(r"-?\d+(\.\d+)?")
    texts = {name: values for name, values in others.items() if not all(map(numbers.fullmatch, values))}
    if label in texts:
        return label
    codes, distinct = others[label], len(set(others[label]))
    alike = [name for name, values in texts.items()
             if len(set(zip(codes, values, strict=True))) == distinct == len(set(values))]  # fmt: skip
    names = [name for name in alike if name in usual] or alike
    if len(names) == 1:
        return names[0]
    if doubtful := names or [name for name in texts if name in usual]:
        what = f"the labels may be the numbers in {label!r} or the texts in {', '.join(map(repr, doubtful))}"
        raise _doubtful("label", what, [label, *doubtful], table)
    return label


def _doubtful(key: str, what: str, names: Sequence[str], table: Path) -> UserError:
    options = " or ".join(shlex.join(["--column", f"{key}={name}"]) for name in names)
    return UserError(what, where=str(table), hint=f"say which: {options}")
