"""What single switches of a protocol do: differences of accuracy between cells that are alike in everything else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

from bolt.protocol import Protocol
from orchestrator.core.cell import Cell
from orchestrator.report.analysis.study import Study, base_protocol
from orchestrator.report.text import DASH
from orchestrator.store.results import Evaluation, Result

Scored = tuple[Cell, Evaluation]
EVERY_METHOD = "every method"


@dataclass(frozen=True)
class Effect:
    """A protocol against the one that it changes, for one method on one track.

    Attributes:
        changes: the switches that differ, as ``name = value``.
        differences: accuracy under ``protocol`` minus accuracy under ``base``, in points, over the test splits of all
            cells that both have.
        changed: how many of them are not bit-equal, counts per class included.
        other_images: on how many the two were scored on different numbers of images.
        selects_on_test: whether test labels may have chosen anything under either.
    """

    protocol: str
    base: str
    changes: str
    track: str
    method: str
    differences: tuple[float, ...]
    changed: int
    other_images: int
    selects_on_test: bool


def effects_of(study: Study) -> list[Effect]:
    """The effects of every protocol whose base is among the results, in the study's order of tracks and methods."""
    scored: dict[tuple[str, str], list[Result]] = defaultdict(list)
    protocols: dict[str, Protocol] = {}
    for result in study.results:
        protocols[result.cell.protocol.name] = result.cell.protocol
        scored[result.cell.protocol.name, result.cell.track].append(result)
    effects: list[Effect] = []
    for name, protocol in protocols.items():
        base = base_protocol(name, protocols)
        if base is None:
            continue
        for track in study.tracks:
            if (name, track) in scored:
                pairs = matched(scored[base, track], scored[name, track], study.labels)
                effects += _by_method(study, protocols[base], protocol, track, pairs)
    return effects


def _by_method(
    study: Study, base: Protocol, protocol: Protocol, track: str, pairs: Iterable[tuple[Scored, Scored]]
) -> Iterator[Effect]:
    """One effect per label of the changed protocol; without any pair, one that says so."""
    groups: dict[str, list[tuple[Scored, Scored]]] = defaultdict(list)
    for before, after in pairs:
        groups[study.labels[after[0].id]].append((before, after))
    for method in [label for label in study.methods if label in groups] or [DASH]:
        own = [(before[1], after[1]) for before, after in groups.get(method, [])]
        yield Effect(
            protocol=protocol.name,
            base=base.name,
            changes=changes(base, protocol),
            track=track,
            method=method,
            differences=tuple(after.accuracy - before.accuracy for before, after in own),
            changed=sum((a.accuracy, a.per_class) != (b.accuracy, b.per_class) for b, a in own),
            other_images=sum(before.total != after.total for before, after in own),
            selects_on_test=base.selects_on_test or protocol.selects_on_test,
        )


def matched(
    base: Iterable[Result], changed: Iterable[Result], labels: Mapping[str, str]
) -> list[tuple[Scored, Scored]]:
    """Test splits of cells that are alike but for the protocol, in the order of ``changed``.

    Alike are backbone, domain, dataset, test split, k, seed and rule of sources, and the method: by its settings or,
    for what is left, by its label. Where several cells answer to one description, none of them is used.
    """
    before, after = _scored(base), _scored(changed)
    partner: dict[int, Scored] = {}
    for describe in (_by_settings, lambda one: _by_label(one, labels)):
        taken = {id(one) for one in partner.values()}
        there = _unique_by(describe, (one for one in before if id(one) not in taken))
        for key, one in _unique_by(describe, (one for one in after if id(one) not in partner)).items():
            if key in there:
                partner[id(one)] = there[key]
    return [(partner[id(one)], one) for one in after if id(one) in partner]


def _scored(results: Iterable[Result]) -> list[Scored]:
    return [(result.cell, evaluation) for result in results for evaluation in result.evaluations]


def _unique_by(describe: Callable[[Scored], Hashable], scored: Iterable[Scored]) -> dict[Hashable, Scored]:
    groups: dict[Hashable, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[describe(one)].append(one)
    return {key: group[0] for key, group in groups.items() if len(group) == 1}


def _place(one: Scored) -> tuple[Hashable, ...]:
    cell, evaluation = one
    return (
        cell.track, cell.backbone.name, cell.domain, cell.dataset.name, evaluation.dataset, cell.shots, cell.seed,
        cell.sources_rule,
    )  # fmt: skip


def _by_settings(one: Scored) -> Hashable:
    return (*_place(one), one[0].method.name, one[0].method.settings)


def _by_label(one: Scored, labels: Mapping[str, str]) -> Hashable:
    return (*_place(one), one[0].method.name, labels[one[0].id])


def changes(base: Protocol, protocol: Protocol) -> str:
    """The switches that differ, as ``name = value``."""
    names = [field.name for field in fields(Protocol) if field.name != "name"]
    differing = [name for name in names if getattr(base, name) != getattr(protocol, name)]
    return ", ".join(f"{name} = {getattr(protocol, name)}" for name in differing)
