"""``data add hf:OWNER/NAME``: fetch a dataset of the Hugging Face hub, and find out its layout.

A repository of parquet files is read like a ``huggingface`` dataset of the catalog. A repository of image files becomes
a folder of images like any other.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console

from bolt.image_folders import image_suffixes, part_of
from orchestrator.catalog import DatasetEntry, dataset_folder, partial_folder
from orchestrator.catalog.routes import HuggingFaceRoute
from orchestrator.datasets.fetching.by_hub import fetch_from_hub, hub_size, repository
from orchestrator.datasets.layouts import COLUMNS, Layout, find_layout
from orchestrator.datasets.prepare import FetchJob, check_space
from orchestrator.datasets.routes.parquet import SHARD, features_in, read_parquet, shards_of
from orchestrator.datasets.state import StagingArea, bytes_in, dataset_lock
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError, explained
from orchestrator.util.units import human_bytes

_ADDRESS = re.compile(r"hf:(?P<repo>([\w.-]+/)?[\w.-]+)(:(?P<config>[\w.-]+))?(@(?P<splits>[\w.,-]+))?")

FETCHED = ".fetched"
"""The file in a dataset's folder that names the repository and the commit that the dataset was fetched from."""


def hub_name(address: str) -> Path:
    """Return the repository in a hub address as a path. Raises ``UserError`` for any other text."""
    return Path(_address(address)["repo"])


def _address(address: str) -> re.Match[str]:
    if found := _ADDRESS.fullmatch(address):
        return found
    raise UserError(f"{address!r} is no address of a dataset", hint="hf:OWNER/NAME, or hf:OWNER/NAME@SPLIT")


def fetch_layout(
    address: str,
    data_root: Path,
    console: Console,
    name: str,
    columns: Mapping[str, str],
    taken: UserError | None = None,
) -> Layout:
    """Fetch a dataset into ``data_root/name``, unless it is there already, and return its layout.

    Args:
        address: ``hf:OWNER/NAME``, with ``:CONFIG`` to name one of several configurations, and with ``@SPLIT`` or
            ``@TRAIN,TEST`` to name splits.
        columns: the columns that the user names: ``path`` (the images) or ``label`` -> the column's name.
        taken: the error to raise if another dataset has this name, unless the folder is there already; else ``None``.

    Raises ``UserError`` if the address, the repository, its splits or its columns cannot be used, or if
    ``data_root/name`` exists and was not fetched from this repository.
    """
    repo, config, splits = _address(address).group("repo", "config", "splits")
    page, folder = f"https://huggingface.co/datasets/{repo}", data_root / name
    if not folder.exists():
        if taken:
            raise taken
        info = repository(repo, None, page)
        revision, paths = info.sha, [file.rfilename for file in info.siblings or ()]
    else:
        fetched = (folder / FETCHED).read_text(encoding="utf-8").split() if (folder / FETCHED).is_file() else []
        if len(fetched) != 2 or fetched[0] != repo:
            raise UserError(f"{folder} exists, but was not fetched from {repo}", hint="give another name: --name NAME")
        revision, paths = fetched[1], [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    route: dict[str, Any] = {"kind": "huggingface", "repo": repo, "revision": revision}
    in_tables = any(path.endswith(".parquet") for path in paths)
    if in_tables:
        route |= _parts(paths, config, splits, repo)
    elif any(PurePosixPath(path).suffix.lower() in image_suffixes() for path in paths):
        route |= {"layout": "class_folders", "splits": {"all": "all"}}
    else:
        hint = f"fetch it (hf download {repo} --repo-type dataset --local-dir FOLDER), unpack it, and add the folder"
        raise UserError(f"{repo} holds neither parquet files nor images", where=page, hint=hint)
    if not folder.exists():
        _fetch(_entry(name, route, page), data_root, console)
    if not in_tables:
        return find_layout(folder / (splits or ""))._replace(licence=f"see {page}")
    part = next(iter(route["splits"]))
    first = shards_of(paths, HuggingFaceRoute.model_validate(route), part)[0]
    route["columns"] = _columns(folder / first, columns)
    names, _ = read_parquet(_entry(name, route, page), folder)
    recipe = "eighty_twenty" if part == "all" else "official"
    notes = tuple(f"{part} is the split {split!r}" for part, split in route["splits"].items() if part != split)
    return Layout(data_root, route, recipe, tuple(names), notes, f"see {page}")


def _entry(name: str, route: Mapping[str, Any], page: str) -> DatasetEntry:
    """Return a catalog entry with which a repository is fetched and read.

    The entry has two placeholders as class names. Without any class names, the reader would refuse labels that are
    numbers without names.
    """
    fields = {"title": name, "domain": "own", "prompts": "plain", "class_names": ["a", "b"], "classes": 2}
    sizes = {"train": 1, "test": 1}
    return DatasetEntry.model_validate({"name": name, "route": route, "sizes": sizes, "licence": page, **fields})


def _fetch(entry: DatasetEntry, data_root: Path, console: Console) -> None:
    """Fetch the files of an entry into the folder ``NAME.partial``, and rename this folder when it is complete."""
    inner = partial_folder(entry, data_root)
    size = hub_size(entry)
    print_line(f"{entry.name}: {human_bytes(size)} from {entry.licence}", console)
    print_line(check_space([FetchJob(entry, size, bytes_in(inner))], data_root), console)
    with dataset_lock(entry.name, data_root):
        assert isinstance(entry.route, HuggingFaceRoute)
        revision, _ = fetch_from_hub(entry, StagingArea(inner, inner, console))
        (inner / FETCHED).write_text(f"{entry.route.repo} {revision}", encoding="utf-8")
        os.rename(inner, dataset_folder(entry, data_root))


def _parts(paths: Iterable[str], config: str | None, given: str | None, repo: str) -> dict[str, Any]:
    """Return fields for a repository's route: ``splits`` and, if the user names a configuration, ``config``.

    If the user names one split, or the repository has only one, it is divided into training and test images. If the
    repository has several splits and the user names none, the splits whose names mean training and test are used.

    Args:
        paths: the files in the repository.
        config: the configuration that the user names; needed if the repository has several.
        given: the splits that the user names, separated by commas.

    Raises ``UserError`` if the repository lacks the named configuration or a named split, or if the user names more
    than two splits. It is also raised if the user leaves a choice open: between several configurations, or between
    splits whose names do not say which ones to use.
    """
    found: dict[str, dict[str, None]] = {}  # configuration -> its splits
    for path in map(PurePosixPath, paths):
        if path.suffix == ".parquet":
            folders = [folder for folder in path.parts[:-1] if folder != "data"]
            split = SHARD.split(path.stem)[0]
            if split.isdecimal() and folders:  # a file that the hub converted: CONFIG/SPLIT/0000.parquet
                split = folders.pop()
            found.setdefault("/".join(folders), {})[split] = None
    if config is None and len(found) > 1:
        hint = "name one: " + " or ".join(f"hf:{repo}:{name}" for name in found if name)
        raise UserError(f"{repo} has several configurations: {', '.join(filter(None, found))}", hint=hint)
    if config is not None and config not in found:
        known = ", ".join(filter(None, found)) or "one without a name"
        raise UserError(f"{repo} has no configuration {config!r}, only {known}")
    splits = list(found[config] if config is not None else next(iter(found.values())))
    parts = {part: split for split in splits if (part := part_of(split)) in ("train", "test")}
    chosen = given.split(",") if given else splits if len(splits) == 1 else [*map(parts.get, ("train", "test"))]
    if len(chosen) > 2 or not set(chosen) <= {*splits}:
        two = ",".join(sorted(splits, key=lambda split: part_of(split) != "train")[:2])
        hint = f"name one split to divide 80/20, or a training and a test split: hf:{repo}@{two}"
        raise UserError(f"{repo} has the splits {', '.join(splits)}", hint=hint)
    named = {"all": chosen[0]} if len(chosen) == 1 else {"train": chosen[0], "test": chosen[1]}
    return {"splits": named, **({"config": config} if config else {})}


def _columns(shard: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the images and of the labels. Raises ``UserError`` if no column fits, or several do."""
    import pyarrow.parquet as pq

    with explained(OSError, ValueError, what="cannot be read as parquet", where=str(shard)):
        schema = pq.read_schema(shard)
    features, chosen = features_in(schema), {}
    for key, option, kind, others in (
        ("image", "path", "Image", [field.name for field in schema if "binary" in str(field.type)]),
        ("label", "label", "ClassLabel", [name for name in COLUMNS["label"] if name in schema.names][:1]),
    ):
        typed = [name for name, facts in features.items() if isinstance(facts, dict) and facts.get("_type") == kind]
        names = [given[option]] if option in given else typed or others
        if len(names) != 1 or names[0] not in schema.names:
            what = f"the column of the {key}s may be {' or '.join(names)}" if len(names) > 1 else f"no column of {key}s"
            columns = ", ".join(schema.names)
            raise UserError(what, where=str(shard), hint=f"say which: --column {option}=NAME; all columns: {columns}")
        chosen[key] = names[0]
    return chosen
