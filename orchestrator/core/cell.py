"""A cell: the frozen identity of one measurement.

Everything that can change the number is in a :class:`Cell`; nothing else is. Two cells with equal contents are the
same measurement, whoever planned them and wherever they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from bolt.protocol import Protocol
from orchestrator.util.identity import address, encode


@dataclass(frozen=True)
class BackboneRef:
    """A backbone by name and by what it is made of (architecture, weights, activation)."""

    name: str
    digest: str


@dataclass(frozen=True)
class DatasetRef:
    """A dataset by name and by what defines its content (route, revision or file list, splits, names, prompts)."""

    name: str
    digest: str


@dataclass(frozen=True)
class SourceRef:
    """One source model: the dataset it was fine-tuned on and the digest of its checkpoint's recipe or file."""

    dataset: str
    digest: str


Ref = TypeVar("Ref", BackboneRef, DatasetRef, SourceRef)


@dataclass(frozen=True)
class MethodRef:
    """A method, the version of its code and every setting, as sorted (name, value) pairs."""

    name: str
    version: int
    settings: tuple[tuple[str, Any], ...]

    def settings_dict(self) -> dict[str, Any]:
        """The settings as a mapping."""
        return dict(self.settings)


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        track: ``fewshot``, ``ood`` or ``tta``.
        protocol: the switches of the measurement, resolved.
        backbone: which CLIP.
        domain: the family of datasets that share sources.
        dataset: the target that is adapted to.
        evaluate_on: datasets whose test split is scored; the target itself but for the ood track.
        sources_rule: ``leave_one_out`` or ``leave_group_out``, ``none`` for methods that use no sources.
        sources: the source models, in a fixed order; empty for methods that use none.
        shots: labelled images per class; 0 for methods that use no support.
        method: which method, with its settings.
        seed: seed of the support draw; 0 for methods that use no support.
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

    @cached_property
    def id(self) -> str:
        """``readable-name--8hex``; names the result file and tags the tracked run."""
        return address(
            self.track, self.backbone.name, self.dataset.name, f"k{self.shots}", self.method.name, f"s{self.seed}",
            of=self,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; :meth:`from_dict` reads it back equal."""
        encoded: dict[str, Any] = encode(self)
        return encoded

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """The inverse of :meth:`to_dict`. Raises ``KeyError`` or ``TypeError`` for what is not a cell."""
        method = data["method"]
        return cls(
            track=data["track"],
            protocol=Protocol(**data["protocol"]),
            backbone=_shared(BackboneRef, **data["backbone"]),
            domain=data["domain"],
            dataset=_shared(DatasetRef, **data["dataset"]),
            evaluate_on=tuple(_shared(DatasetRef, **ref) for ref in data["evaluate_on"]),
            sources_rule=data["sources_rule"],
            sources=_same(tuple(_shared(SourceRef, **ref) for ref in data["sources"])),
            shots=data["shots"],
            method=MethodRef(
                method["name"],
                method["version"],
                tuple((name, _frozen(value)) for name, value in method["settings"]),
            ),
            seed=data["seed"],
        )


@lru_cache(maxsize=4096, typed=True)
def _shared(kind: type[Ref], **fields: str) -> Ref:
    """A reference, one object for all cells that have it: of a large grid's results they are a fifth of the memory."""
    return kind(**fields)


@lru_cache(maxsize=4096, typed=True)
def _same(sources: tuple[SourceRef, ...]) -> tuple[SourceRef, ...]:
    """Equal sources as one object."""
    return sources


def _frozen(value: Any) -> Any:
    """Lists back to the tuples they were."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
