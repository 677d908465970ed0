"""A cell: the identity of one measurement.

A :class:`Cell` holds everything that can change the measured number, and nothing else. Two cells with equal contents
are the same measurement, in any grid and on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

from bolt.protocol import Precision, Protocol
from orchestrator.util.identity import ADDED_LATER, address, encode


@dataclass(frozen=True)
class BackboneRef:
    """A backbone: its name, a digest of its architecture, weights and activation, and the number format of its towers.

    Attributes:
        precision: number format of the matrix products in the towers; ``None`` for the default of the device.
    """

    name: str
    digest: str
    precision: Precision | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True)
class DatasetRef:
    """A dataset: its name, and a digest of everything that decides its images, labels, class names and prompts."""

    name: str
    digest: str


@dataclass(frozen=True)
class SourceRef:
    """A source model: the dataset it was fine-tuned on, and a digest of its recipe or of its checkpoint's file."""

    dataset: str
    digest: str


Ref = TypeVar("Ref", BackboneRef, DatasetRef, SourceRef)


@dataclass(frozen=True)
class MethodRef:
    """A method: its name, the version of its code, and all settings as sorted (name, value) pairs."""

    name: str
    version: int
    settings: tuple[tuple[str, Any], ...]

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings as a mapping."""
        return dict(self.settings)


class Place(NamedTuple):
    """The names of a cell's track, protocol, backbone and domain. Only cells with the same place are compared."""

    track: str
    protocol: str
    backbone: str
    domain: str


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        track: name of a track in :mod:`orchestrator.tracks`.
        protocol: the protocol, with the values of all switches.
        backbone: the CLIP.
        domain: the family of datasets that share sources.
        dataset: the target, to which the method adapts.
        evaluate_on: the datasets whose test splits are scored. Most tracks score the target only.
        sources_rule: the rule that leaves datasets out of the sources. ``leave_one_out`` leaves out the target, the
            scored datasets and other splits of their images; ``leave_group_out`` also related datasets. ``none`` is for
            methods that use no sources.
        sources: the source models, in a fixed order; empty for methods that use none.
        shots: labelled images per class; 0 for methods that use no support.
        method: the method, with its settings.
        seed: seed of the support draw; 0 for methods that use no support.
        listed: digest of the file that lists the support, if the protocol's ``support_draw`` is ``listed``.
    """

    track: str
    protocol: Protocol
    backbone: BackboneRef
    domain: str
    dataset: DatasetRef
    evaluate_on: tuple[DatasetRef, ...]
    sources_rule: str
    sources: tuple[SourceRef, ...]
    shots: int
    method: MethodRef
    seed: int
    listed: str | None = field(default=None, metadata=ADDED_LATER)

    @cached_property
    def id(self) -> str:
        """The cell's id, ``readable-name--8hex``: the name of its result file and a tag of its MLflow run."""
        return address(
            self.track, self.backbone.name, self.dataset.name, f"k{self.shots}", self.method.name, f"s{self.seed}",
            of=self,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash(self.id)  # hashing all fields takes longer, and a large grid hashes cells a million times

    @property
    def place(self) -> Place:
        """The track, protocol, backbone and domain."""
        return Place(self.track, self.protocol.name, self.backbone.name, self.domain)

    @property
    def selects_on_test(self) -> bool:
        """Whether test labels choose a setting of this cell."""
        return self.protocol.selects_on_test(self.track)

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as plain JSON types, from which :meth:`from_dict` makes an equal cell."""
        return dict(encode(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Return the cell that :meth:`to_dict` wrote.

        Raises ``KeyError`` or ``TypeError`` if ``data`` is not a cell.
        """
        method = data["method"]
        settings = tuple((name, _frozen(value)) for name, value in method["settings"])
        made = {
            "protocol": Protocol(**data["protocol"]),
            "backbone": _shared(BackboneRef, **data["backbone"]),
            "dataset": _shared(DatasetRef, **data["dataset"]),
            "evaluate_on": tuple(_shared(DatasetRef, **ref) for ref in data["evaluate_on"]),
            "sources": _same(tuple(_shared(SourceRef, **ref) for ref in data["sources"])),
            "method": MethodRef(method["name"], method["version"], settings),
        }
        cell = cls(**{**data, **made})
        hash(tuple(vars(cell).values()))  # raises TypeError if a field that should hold a name holds a list
        return cell


LabelOf = Callable[[Cell], str]
"""``cell -> label``: the name that tables print for a method with its settings."""


@lru_cache(maxsize=4096, typed=True)
def _shared(kind: type[Ref], **fields: Any) -> Ref:
    """Return a reference with these fields. Calls with equal fields return the same object.

    Sharing the objects saves a fifth of the memory that the results of a large grid take.
    """
    return kind(**fields)


@lru_cache(maxsize=4096, typed=True)
def _same(sources: tuple[SourceRef, ...]) -> tuple[SourceRef, ...]:
    """Return the sources. Calls with equal sources return the same object."""
    return sources


def _frozen(value: Any) -> Any:
    """Return the value with its lists turned back into tuples, which JSON stores as lists."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
