"""Read the catalog's files into one :class:`Catalog`."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from bolt.util.outside import CATALOG_GROUP, load_outside
from orchestrator.catalog.backbone_entry import BackboneEntry, CheckpointEntry
from orchestrator.catalog.dataset_entry import DatasetEntry, DomainEntry
from orchestrator.catalog.location import Location, grids_folder
from orchestrator.catalog.validation import OPEN_CLIP, Key, StrictModel, check_templates, validated
from orchestrator.catalog.yaml_files import parse_yaml, read_text
from orchestrator.util.errors import unknown_name


def _with_keys(section: Any, *, fields: tuple[str, ...], keys: tuple[str, ...] = ()) -> Any:
    """Return a copy of a section in which every entry also has its keys as fields.

    With the ``fields`` ``backbone`` and ``dataset``, the entry under the keys ``vit-b-32`` and ``pets`` gets the fields
    ``backbone: vit-b-32`` and ``dataset: pets``. ``keys``: the keys that led to ``section``.

    Raises ``ValueError`` for an entry that already has one of the fields.
    """
    section = section or {}
    if not isinstance(section, dict):
        return section
    if len(keys) < len(fields):
        return {key: _with_keys(inner, fields=fields, keys=(*keys, key)) for key, inner in section.items()}
    if given := [name for name in fields if name in section]:
        where = ".".join(map(str, keys))
        raise ValueError(f"{where} has the field {given[0]!r}, which repeats the entry's key; remove the field")
    return {**section, **dict(zip(fields, keys, strict=True))}


_NAMED = BeforeValidator(partial(_with_keys, fields=("name",)))
_ADOPTED = BeforeValidator(partial(_with_keys, fields=("backbone", "dataset")))


def _prompt_set(value: Any) -> Any:
    """Return the templates in ``value`` or, for ``source: open_clip.NAME``, the name ``open_clip.NAME``.

    Raises ``ValueError`` for any other value.
    """
    if not isinstance(value, dict):
        return check_templates(value)
    source = value.get("source")
    if len(value) > 1 or not isinstance(source, str) or not source.startswith(OPEN_CLIP):
        raise ValueError("a set is a list of templates, or 'source: open_clip.NAME'")
    return source


PromptSet = Annotated[tuple[str, ...] | str, BeforeValidator(_prompt_set)]


class CatalogFile(StrictModel):
    """The sections of a catalog file. A section maps keys to entries."""

    domains: Annotated[dict[Key, DomainEntry], _NAMED] = Field(default={})
    datasets: Annotated[dict[Key, DatasetEntry], _NAMED] = Field(default={})
    backbones: Annotated[dict[Key, BackboneEntry], _NAMED] = Field(default={})
    prompts: Annotated[dict[Key, PromptSet], BeforeValidator(lambda section: section or {})] = Field(default={})
    checkpoints: Annotated[dict[Key, dict[Key, CheckpointEntry]], _ADOPTED] = Field(default={})


@dataclass(frozen=True)
class Catalog:
    """Everything that grids can name, by key, in the order of the files.

    Attributes:
        datasets, domains, backbones: the entries. If a dataset names a prompt set, the set's content replaces the name.
        files: (section, key) -> path of the file that the entry is in, as messages show it.
        checkpoints: (backbone, dataset) -> adopted checkpoint.
    """

    datasets: Mapping[str, DatasetEntry]
    domains: Mapping[str, DomainEntry]
    backbones: Mapping[str, BackboneEntry]
    files: Mapping[tuple[str, str], str]
    checkpoints: Mapping[tuple[str, str], CheckpointEntry]

    def dataset(self, name: str, where: Location | str = "") -> DatasetEntry:
        """Return the dataset with the key ``name``. Raises ``UserError`` with the nearest keys if there is none."""
        return _look_up("dataset", name, self.datasets, where)

    def domain(self, name: str, where: Location | str = "") -> DomainEntry:
        """Return the domain with the key ``name``. Raises ``UserError`` with the nearest keys if there is none."""
        return _look_up("domain", name, self.domains, where)

    def backbone(self, name: str, where: Location | str = "") -> BackboneEntry:
        """Return the backbone with the key ``name``. Raises ``UserError`` with the nearest keys if there is none."""
        return _look_up("backbone", name, self.backbones, where)

    def datasets_of(self, domain: str, where: Location | str = "") -> tuple[DatasetEntry, ...]:
        """Return the datasets of a domain, in the catalog's order. Raises ``UserError`` for an unknown domain."""
        self.domain(domain, where)
        return tuple(entry for entry in self.datasets.values() if entry.domain == domain)

    def published_names(self, backbone: str, dataset: str) -> tuple[str | None, str | None]:
        """Return the names of a backbone and a dataset in the paper's tables; ``None`` for a missing name."""
        known = self.datasets.get(dataset)  # ``dataset`` may be a group of a dataset's classes, which has no entry
        return self.backbone(backbone).published_as, known.published_as if known else None


Entry = TypeVar("Entry")


def _look_up(kind: str, name: str, entries: Mapping[str, Entry], where: Location | str) -> Entry:
    if name not in entries:
        own = f"if the {kind} is your own, name its catalog file: --catalog FILE"
        raise unknown_name(kind, name, entries, where=str(where), otherwise=own)
    return entries[name]


def load_catalog(extra_files: Iterable[Path | str] = ()) -> Catalog:
    """Return the project's catalog, extended by files of installed packages and by ``extra_files`` of the user.

    Each file has any of the sections of :class:`CatalogFile`. The same entry may be in several files: ``data add``
    writes the domain ``own`` into each file.

    Raises ``UserError`` if a file cannot be read or has an unknown or wrong field, if two files have different entries
    of one key, or if an entry names an unknown domain, prompt set, backbone or dataset.
    """
    folder = grids_folder()
    shipped = [*sorted(folder.glob("datasets/*.yaml")), *sorted(folder.glob("backbones/*.yaml"))]
    found: dict[str, dict[str, Any]] = {section: {} for section in CatalogFile.model_fields}
    files: dict[tuple[str, str], str] = {}
    outside = [Path(file) for file, _ in load_outside(CATALOG_GROUP)]
    for path in (folder / "prompts.yaml", *shipped, *outside, *map(Path, extra_files)):
        top = Location.of(path)
        for section, entries in _parse(read_text(path), top, path.absolute().parent).items():
            for name, entry in entries.items():
                if found[section].setdefault(name, entry) != entry:
                    what = f"{files[section, name]} has another entry {name!r}"
                    raise (top / section / name).error(what, "rename one of them")
                files.setdefault((section, name), top.file)
    datasets, prompts = found["datasets"], found["prompts"]
    checkpoints = {(entry.backbone, entry.dataset): entry for entry in found["checkpoints"].values()}
    catalog = Catalog(datasets, found["domains"], found["backbones"], files, checkpoints)
    for name, entry in datasets.items():
        location = Location(files["datasets", name], f"datasets.{name}")
        catalog.domain(entry.domain, location / "domain")
        if isinstance(entry.prompts, str) and not entry.prompts.startswith(OPEN_CLIP):
            if entry.prompts not in prompts:
                raise (location / "prompts").unknown_name("prompt set", entry.prompts, prompts)
            datasets[name] = entry.model_copy(update={"prompts": prompts[entry.prompts]})
    for key, entry in found["checkpoints"].items():
        location = Location(files["checkpoints", key], "checkpoints")
        catalog.backbone(entry.backbone, location)
        catalog.dataset(entry.dataset, location / entry.backbone)
    return catalog


@lru_cache(maxsize=32)
def _parse(text: str, top: Location, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of one file: section -> key -> entry. The key of a checkpoint is ``backbone/dataset``.

    The path of a checkpoint becomes absolute; a relative path begins in ``folder``. The result is cached, because
    parsing the project's files takes 25 ms and a session loads the catalog several times.
    """
    file = validated(CatalogFile, parse_yaml(text, top.file), top)
    stated = [entry for of_backbone in file.checkpoints.values() for entry in of_backbone.values()]
    entries = [entry.model_copy(update={"file": folder / os.path.expanduser(entry.file)}) for entry in stated]
    return {**dict(file), "checkpoints": {f"{entry.backbone}/{entry.dataset}": entry for entry in entries}}
