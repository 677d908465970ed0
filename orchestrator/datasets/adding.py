"""``data add``: make a catalog entry of a user's own images, after decoding every one of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from bolt.clip.image_files import UPRIGHT, Reading
from orchestrator.catalog import Catalog, DatasetEntry, dataset_folder, load_catalog
from orchestrator.catalog.location import Location, display_path
from orchestrator.catalog.references import cached_digest
from orchestrator.catalog.routes import ManifestRoute, files_of
from orchestrator.catalog.validation import as_key, key_problem, validated
from orchestrator.catalog.yaml_files import read_mapping, write_entries
from orchestrator.core.events import OnProgress
from orchestrator.datasets.changes import are_first_images, changes, is_unchanged, record_checksums, shared_images
from orchestrator.datasets.class_words import Words, class_words
from orchestrator.datasets.layouts import Layout, find_layout
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.routes.tar_shards import folder_of, is_table
from orchestrator.datasets.verify import Copies, exclude_broken, image_notes, verify_dataset
from orchestrator.util.errors import UserError
from orchestrator.util.locks import changing
from orchestrator.util.units import listed

SHOWN_BROKEN = 20
OWN_DOMAIN = "own"
PLAIN = "a photo of a {}."
_NOT_KEPT = ("exif_rotation", "renamed")
"""Fields that ``--replace`` does not keep: the first is decided anew, and ``class_names`` includes ``renamed``."""


@dataclass(frozen=True)
class DatasetOptions:
    """The user's statements about a dataset. Everything else is read from the images.

    Attributes:
        name: the key of the dataset; ``None`` takes the folder's name.
        title: the name of the dataset in tables; ``None`` takes the folder's name.
        domain: the domain of the dataset; a new domain is added to the catalog.
        templates: prompts with ``{}`` for the class words; if empty, the catalog's prompts ``plain`` are used.
        mirrorable: whether a mirrored image keeps its class.
        licence: the terms of the images.
        exclude_broken: whether unreadable images are listed as excluded, so that the other images can be used.
        replace: whether to replace an entry of this name in the user's catalog file, for example because the images
            have changed.
        tested: whether the user gives test images. If not, training images serve as test images too, and only the
            training part is decoded.
        words: a table of words and sentences for the classes; see :func:`class_words`.
        columns: the columns of a table of images that the user names: ``path``, ``label`` or ``split`` -> the column's
            name.
        reading: which bands of the images are used, and which values become black and white.
    """

    name: str | None = None
    title: str | None = None
    domain: str = OWN_DOMAIN
    templates: tuple[str, ...] = ()
    mirrorable: bool = True
    licence: str = "own images"
    exclude_broken: bool = False
    replace: bool = False
    tested: bool = True
    words: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    reading: Reading = UPRIGHT


class Added(NamedTuple):
    """The result of ``data add``.

    Attributes:
        entry: the new catalog entry.
        data_root: the folder to pass as ``--data-root``.
        notes: remarks for the user.
        replaced: the entry that had the dataset's key before.
    """

    entry: DatasetEntry
    data_root: Path
    notes: tuple[str, ...]
    replaced: DatasetEntry | None = None


class CheckedImages(NamedTuple):
    """Images that can be a dataset, after every one was decoded.

    Attributes:
        entry: the catalog entry, with sizes that are not counted yet.
        fields: the fields of the entry as in YAML, with the counted sizes.
        notes: remarks for the user.
        copies: groups of images that show one picture.
        contents: a digest of all images.
    """

    entry: DatasetEntry
    fields: dict[str, Any]
    notes: tuple[str, ...]
    copies: Copies
    contents: str


def add_dataset(
    path: Path,
    catalog_files: Sequence[Path],
    options: DatasetOptions,
    advance: OnProgress = lambda done, of: None,
    find: Callable[[str, Mapping[str, str], UserError | None], Layout] | None = None,
) -> Added:
    """Check a folder or table of images, and add an entry for it to the last of ``catalog_files``.

    This last file need not exist yet.

    Args:
        advance: called with the number of decoded images and the number of all images.
        find: called with the dataset's key, the names of columns, and an error to raise before anything is fetched
            (``None`` if the key is free); returns the layout. By default :func:`find_layout`.

    An entry of this name with the same fields and the same images stays as it is: an earlier command may have been
    killed after it wrote the entry.

    Raises ``UserError`` if the layout, the names or the images are unusable. In that case, the catalog file is
    unchanged. The list of excluded images may have been written, if the user asked for it.
    """
    name = options.name or dataset_key(path)
    if wrong := key_problem(name):
        raise UserError(wrong, where="--name")
    catalog_file = catalog_files[-1]
    catalog = load_catalog([file for file in catalog_files if file != catalog_file or file.exists()])
    taken: UserError | None = None
    if old := catalog.datasets.get(name):
        own_entry = catalog.files["datasets", name] == display_path(catalog_file)
        others = chain([f"my-{name}"], (f"my-{name}-{number}" for number in count(2)))
        hint = f"give another name: --name {next(other for other in others if other not in catalog.datasets)}"
        hint += "; or replace it, if its images have changed: --replace" * own_entry
        taken = UserError(f"there is a dataset {name!r} already, in {catalog.files['datasets', name]}", hint=hint)
        if not own_entry:
            raise taken
        if options.replace:
            options, taken = kept_options(options, old), None
    layout = find(name, options.columns, taken) if find else find_layout(path, options.columns)
    options = replace(options, title=options.title or _title(dataset_key(path)))
    words = class_words(layout.names, options.words)
    if old and taken:
        fields = _fields_of(name, layout, words, options)
        stored = read_mapping(catalog_file)["datasets"][name]
        counted = ("sizes", "smallest_class", "image_side", "images_of", "contents", *_NOT_KEPT)
        is_same = fields | {key: stored[key] for key in counted if key in stored} == stored
        if not is_same or not is_unchanged(old, layout.data_root):
            raise taken
        note = f"the entry is there already, and its images are the same: `data verify {name}` checks them again"
        return Added(old, layout.data_root, (*layout.notes, note))
    if old and isinstance(old.class_names, dict) and options.words is None:  # the words may have been edited
        known = words.words | {folder: word for folder, word in old.class_names.items() if folder in words.words}
        kept = old.prompts if isinstance(old.prompts, dict) else {}
        words = Words(known, {folder: kept.get(word, ()) for folder, word in known.items()}, ())
    checked = check_images(name, layout, words, options, catalog_file, advance)
    as_stated = {"sizes": old.sizes, "contents": old.contents} if old else {}
    file = layout.route.get("file", "")  # class folders have none
    table = dataset_folder(checked.entry, layout.data_root) / file
    if file.lower().endswith(".tar") and not table.is_file():  # a pattern of several tar files
        checked.fields["contents"] = cached_digest(*files_of(table))
    # Other images may have the same names and sizes. Without a record, the counts are compared.
    elif old and changes(checked.entry.model_copy(update=as_stated), layout.data_root):
        checked.fields["contents"] = "" if are_first_images(checked.entry, layout.data_root) else checked.contents
    if old:  # what the user wrote into the entry stays
        for key, value in read_mapping(catalog_file)["datasets"][name].items():
            if key not in _NOT_KEPT:
                checked.fields.setdefault(key, value)
    else:  # before the entry is written, so that a killed command leaves no entry without checksums
        unrecorded = record_checksums(checked.entry, layout.data_root)
    notes = (*checked.notes, *state_shared_images(checked, layout.data_root, catalog))
    write_entry(checked, options.domain, catalog_files, replaces=old is not None)
    entry = load_catalog(catalog_files).datasets[name]
    if old:
        unrecorded = record_checksums(entry, layout.data_root)
    return Added(entry, layout.data_root, (*notes, *unrecorded), old)


def state_shared_images(checked: CheckedImages, data_root: Path, catalog: Catalog) -> list[str]:
    """Add the user's datasets that have some of the images to ``images_of`` of the entry; return a note for each.

    A source model of such a dataset has learned from these images, test images among them.
    """
    if shared := shared_images(checked.entry, data_root, catalog):
        stated = checked.fields.get("images_of", [])
        stated = [stated] if isinstance(stated, str) else stated
        checked.fields["images_of"] = list(dict.fromkeys([*stated, *shared]))
    why = "so neither is a source of the other (images_of)"
    return [f"images that {name} has as well: {number}; {why}" for name, number in shared.items()]


def check_images(
    name: str, layout: Layout, words: Words, options: DatasetOptions, catalog_file: Path, advance: OnProgress
) -> CheckedImages:
    """Decode and check the images of a layout, which become the dataset ``name`` of ``catalog_file``.

    Raises ``UserError`` as :func:`add_dataset`.
    """
    fields = _fields_of(name, layout, words, options)
    entry = validated(DatasetEntry, {"name": name, **fields}, Location(display_path(catalog_file), f"datasets.{name}"))
    raw = open_dataset(entry, layout.data_root)
    for part, needed in (("train", "learn from"), ("test", "be tested on")):
        if absent := [word for word, size in zip(raw.class_names, raw.class_sizes(part), strict=True) if not size]:
            hint = "every class needs a training image and a test image, so at least two images for an 80/20 split"
            hint += f"; also too few: {', '.join(absent[1:6])}" if absent[1:] else ""
            raise UserError(f"class {absent[0]!r} has too few images: none is left to {needed}", hint=hint)
    parts = ("train", "test") if options.tested else ("train",)
    found = verify_dataset(entry, raw, layout.data_root, advance, parts=parts)
    if found.broken:
        if not options.exclude_broken:
            lines = listed([f"{broken.origin}: {broken.reason}" for broken in found.broken], SHOWN_BROKEN, "\n  ")
            hint = "repair or remove them, or exclude them with --exclude-broken"
            if options.reading.bands and len(found.broken) == found.decoded:
                hint = "correct --bands"
            raise UserError(f"{len(found.broken)} of {found.decoded} images cannot be decoded:\n  {lines}", hint=hint)
        exclude_broken(found, layout.data_root)
        raw = open_dataset(entry, layout.data_root)
    fields["sizes"] = {"train": len(raw.train), "test": len(raw.test)}
    fields |= {"smallest_class": min(raw.class_sizes("train")), "image_side": found.image_side}
    if found.rotated:
        fields["exif_rotation"] = True
    notes = (*layout.notes, *words.notes, *image_notes(found, raw))
    return CheckedImages(entry, fields, notes, found.copies, found.contents)


def write_entry(checked: CheckedImages, domain: str, catalog_files: Sequence[Path], *, replaces: bool = False) -> None:
    """Write the entry of checked images into the last of ``catalog_files``, and the domain if no file has it.

    ``replaces``: whether the file has an entry of this name, which is replaced.
    """
    catalog_file = catalog_files[-1]
    title = "Own images" if domain == OWN_DOMAIN else _title(domain)
    with changing(catalog_file):
        known = load_catalog([file for file in catalog_files if file.exists()]).domains
        domains = {} if domain in known else {domain: {"title": title}}
        new = {checked.entry.name: checked.fields}
        write_entries(catalog_file, {"domains": domains, "datasets": new}, replace=replaces)


def _fields_of(name: str, layout: Layout, words: Words, options: DatasetOptions) -> dict[str, Any]:
    """Return the fields of the catalog entry as in YAML. The sizes are placeholders."""
    word_of, sentences, _ = words
    prompts: Any = list(options.templates) or "plain"
    if any(sentences.values()):
        prompts = {word: [*options.templates, *sentences[name]] or [PLAIN] for name, word in word_of.items()}
    fields: dict[str, Any] = {
        "title": options.title or _title(name),
        "domain": options.domain,
        "route": dict(layout.route),
        "class_names": word_of,
        "prompts": prompts,
        "classes": len(word_of),
        "mirrorable": options.mirrorable,
        "sizes": {"train": 1, "test": 1},  # until the images are counted
        "splits": {"recipe": layout.recipe},
        "licence": layout.licence if layout.licence and options.licence == DatasetOptions.licence else options.licence,
    }
    return fields | {name: list(value) for name in ("bands", "range") if (value := getattr(options.reading, name))}


def kept_options(options: DatasetOptions, old: DatasetEntry) -> DatasetOptions:
    """Return the options for replacing the entry ``old``. An option that is not given takes the value in ``old``."""
    named = old.route.columns.items() if isinstance(old.route, ManifestRoute) else ()
    return replace(
        options,
        title=options.title or old.title,
        domain=old.domain if options.domain == OWN_DOMAIN else options.domain,
        templates=options.templates or (old.prompts if isinstance(old.prompts, tuple) else ()),
        mirrorable=options.mirrorable and old.mirrorable,
        licence=old.licence if options.licence == DatasetOptions.licence else options.licence,
        columns={key: name for key, name in named if key != name or key != "split"} | dict(options.columns),
        reading=Reading(bands=options.reading.bands or old.bands, range=options.reading.range or old.range),
    )


def _title(key: str) -> str:
    return key.replace("-", " ").replace("_", " ").capitalize()


def dataset_key(path: Path) -> str:
    """Return a key made from the name of a folder of images, or from the name of the folder that holds a table.

    Raises ``UserError`` if the name has no usable character.
    """
    path = Path(os.path.abspath(path))
    folder = folder_of(path) if is_table(path) else path
    if not (key := as_key(folder.name)):
        raise UserError(f"no name can be made from {path.name!r}", hint="give a name with --name")
    return key
