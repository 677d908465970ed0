"""Reading the catalog's files into one :class:`Catalog`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.catalog.backbone_entry import BackboneEntry
from orchestrator.catalog.checkpoint_entry import CheckpointEntry, flatten_checkpoints, read_checkpoints
from orchestrator.catalog.dataset_entry import DatasetEntry, DomainEntry
from orchestrator.catalog.fields import OPEN_CLIP, StrictModel, check_templates, key_problem
from orchestrator.catalog.location import Location, grids_folder
from orchestrator.catalog.validation import as_mapping, validated
from orchestrator.catalog.yaml_files import read_mapping
from orchestrator.util.errors import unknown_name

Model = TypeVar("Model", bound=StrictModel)

SECTIONS = ("domains", "datasets", "backbones", "prompts", "checkpoints")
"""The top-level fields of a catalog file."""

Raw = dict[str, dict[str, tuple[Any, Location]]]
"""Section -> key -> plain value and location, of all files."""


@dataclass(frozen=True)
class Catalog:
    """Everything that grids can name, by key, in the order of the files.

    Attributes:
        datasets, domains, backbones: the entries. Datasets hold their prompts instead of the name of a prompt set.
        files: (section, key) -> the file that the entry is in, as messages show it.
        checkpoints: (backbone, dataset) -> adopted checkpoint.
    """

    datasets: Mapping[str, DatasetEntry]
    domains: Mapping[str, DomainEntry]
    backbones: Mapping[str, BackboneEntry]
    files: Mapping[tuple[str, str], str]
    checkpoints: Mapping[tuple[str, str], CheckpointEntry] = field(default_factory=dict)

    def dataset(self, name: str, where: Location | str = "") -> DatasetEntry:
        """A dataset by key. Raises ``UserError`` with the nearest ones."""
        if name not in self.datasets:
            raise unknown_name("dataset", name, self.datasets, where=str(where))
        return self.datasets[name]

    def domain(self, name: str, where: Location | str = "") -> DomainEntry:
        """A domain by key. Raises ``UserError`` with the nearest ones."""
        if name not in self.domains:
            raise unknown_name("domain", name, self.domains, where=str(where))
        return self.domains[name]

    def backbone(self, name: str, where: Location | str = "") -> BackboneEntry:
        """A backbone by key. Raises ``UserError`` with the nearest ones."""
        if name not in self.backbones:
            raise unknown_name("backbone", name, self.backbones, where=str(where))
        return self.backbones[name]

    def datasets_of(self, domain: str, where: Location | str = "") -> tuple[DatasetEntry, ...]:
        """The datasets of a domain, in the catalog's order. Raises ``UserError`` for an unknown domain."""
        self.domain(domain, where)
        return tuple(entry for entry in self.datasets.values() if entry.domain == domain)


def load_catalog(extra_files: Iterable[Path | str] = ()) -> Catalog:
    """The project's catalog, extended by files of the user.

    Args:
        extra_files: files of the same format, with any of ``SECTIONS``.

    Raises:
        UserError: if a file cannot be read or has an unknown or wrong field, if two files use one key, or if a dataset
            has an unknown domain or prompt set.
    """
    folder = grids_folder()
    paths = [folder / "prompts.yaml", *sorted(folder.glob("datasets/*.yaml")), *sorted(folder.glob("backbones/*.yaml"))]
    paths += [Path(extra) for extra in extra_files]
    raw: Raw = {section: {} for section in SECTIONS}
    for path in paths:
        _collect(path, raw)
    prompts = {name: _prompt_set(value, location) for name, (value, location) in raw["prompts"].items()}
    domains = _entries(DomainEntry, raw["domains"])
    datasets = {}
    for name, (value, location) in raw["datasets"].items():
        entry = _entry(DatasetEntry, name, value, location)
        if entry.domain not in domains:
            raise (location / "domain").unknown_name("domain", entry.domain, domains)
        if isinstance(entry.prompts, str) and not entry.prompts.startswith(OPEN_CLIP):
            if entry.prompts not in prompts:
                raise (location / "prompts").unknown_name("prompt set", entry.prompts, prompts)
            entry = entry.model_copy(update={"prompts": prompts[entry.prompts]})
        datasets[name] = entry
    files = {(section, name): location.file for section, named in raw.items() for name, (_, location) in named.items()}
    backbones = _entries(BackboneEntry, raw["backbones"])
    checkpoints = read_checkpoints(raw["checkpoints"], backbones, datasets)
    return Catalog(datasets, domains, backbones, files, checkpoints)


def _collect(path: Path, raw: Raw) -> None:
    """Add the sections of one file. Raises ``UserError`` for a key that another file has too."""
    top = Location.of(path)
    for section, named in read_mapping(path).items():
        if section not in SECTIONS:
            raise top.unknown_name("field", section, SECTIONS)
        named = as_mapping(named or {}, top / section)
        if section == "checkpoints":
            named = flatten_checkpoints(named, top / section, path.absolute().parent)
        for name, value in named.items():
            location = top / section / name
            problem = key_problem(name) if section != "checkpoints" else None  # two keys, checked where they are read
            if problem:
                raise (top / section).error(problem)
            if name in raw[section]:
                other = raw[section][name][1]
                raise location.error(f"{name!r} stands in {other.file} too", "rename one of them")
            raw[section][name] = (value, location)


def _entry(model: type[Model], name: str, value: Any, location: Location) -> Model:
    value = as_mapping(value, location)
    if "name" in value:
        raise (location / "name").error("the key is the name; it is not given again")
    return validated(model, {"name": name, **value}, location)


def _entries(model: type[Model], named: Mapping[str, tuple[Any, Location]]) -> dict[str, Model]:
    return {name: _entry(model, name, value, location) for name, (value, location) in named.items()}


def _prompt_set(value: Any, location: Location) -> tuple[str, ...] | str:
    """A list of templates, or the name of a list of open_clip (``source: open_clip.NAME``)."""
    if isinstance(value, dict):
        source = value.get("source")
        if set(value) != {"source"} or not isinstance(source, str) or not source.startswith(OPEN_CLIP):
            raise location.error("a set is a list of templates, or 'source: open_clip.NAME'")
        return source
    try:
        return tuple(check_templates(value))
    except ValueError as error:
        raise location.error(str(error)) from None
