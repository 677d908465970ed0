"""Effects of protocol switches: the difference in accuracy between cells that are equal in everything else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

from bolt.protocol import Protocol
from orchestrator.analysis.comparable import base_protocol
from orchestrator.core.cell import Cell
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import DASH
from orchestrator.store.results import Evaluation, Result

Scored = tuple[Cell, Evaluation]
"""A cell, and its evaluation on one test split."""


@dataclass(frozen=True)
class SwitchEffect:
    """A protocol compared with the protocol that it changes, for one method on one track.

    Attributes:
        protocol, base: names of the changed protocol and of the one that it changes.
        switches: the switches that differ, as ``name = value``.
        method: a label; a dash if no cells could be paired.
        differences: accuracy under ``protocol`` minus accuracy under ``base``, in points, for every test split that
            both have.
        changed: the number of pairs whose accuracy or counts per class differ at all.
        other_images: the number of pairs that were scored on different numbers of images.
        selects_on_test: whether test labels may have chosen a setting under either protocol.
    """

    protocol: str
    base: str
    switches: str
    track: str
    method: str
    differences: tuple[float, ...]
    changed: int
    other_images: int
    selects_on_test: bool


def switch_effects(study: Study) -> list[SwitchEffect]:
    """The effects of every protocol whose base protocol has results, in the study's order of tracks and methods."""
    results: dict[tuple[str, str], list[Result]] = defaultdict(list)
    protocols: dict[str, Protocol] = {}
    for result in study.results:
        protocols[result.cell.protocol.name] = result.cell.protocol
        results[result.cell.protocol.name, result.cell.track].append(result)
    effects: list[SwitchEffect] = []
    for name, protocol in protocols.items():
        base = base_protocol(name, protocols)
        if base is None:
            continue
        for track in study.tracks:
            if (name, track) in results:
                pairs = paired(results[base, track], results[name, track], study.labels)
                effects += _by_method(study, protocols[base], protocol, track, pairs)
    return effects


def _by_method(
    study: Study, base: Protocol, protocol: Protocol, track: str, pairs: Iterable[tuple[Scored, Scored]]
) -> Iterator[SwitchEffect]:
    """One effect for each label under the changed protocol; a single one without differences if there are no pairs."""
    groups: dict[str, list[tuple[Evaluation, Evaluation]]] = defaultdict(list)
    for (_, before), (cell, after) in pairs:
        groups[study.labels[cell.id]].append((before, after))
    for method in [label for label in study.methods if label in groups] or [DASH]:
        own = groups.get(method, [])
        yield SwitchEffect(
            protocol=protocol.name,
            base=base.name,
            switches=differing_switches(base, protocol),
            track=track,
            method=method,
            differences=tuple(after.accuracy - before.accuracy for before, after in own),
            changed=sum((a.accuracy, a.per_class) != (b.accuracy, b.per_class) for b, a in own),
            other_images=sum(before.total != after.total for before, after in own),
            selects_on_test=base.selects_on_test or protocol.selects_on_test,
        )


def paired(base: Iterable[Result], changed: Iterable[Result], labels: Mapping[str, str]) -> list[tuple[Scored, Scored]]:
    """Pairs of evaluations whose cells differ only in the protocol, in the order of ``changed``.

    Cells of a pair share backbone, domain, dataset, test split, k, seed, rule for sources and method. The methods match
    by their settings; cells without such a partner match by label. If several cells match, none of them is used.
    """
    before, after = (
        [(result.cell, evaluation) for result in results for evaluation in result.evaluations]
        for results in (base, changed)
    )
    partners: dict[int, Scored] = {}
    for variant_of in (lambda cell: cell.method.settings, lambda cell: labels[cell.id]):
        used = {id(partner) for partner in partners.values()}
        candidates = _unique(variant_of, (one for one in before if id(one) not in used))
        for key, one in _unique(variant_of, (one for one in after if id(one) not in partners)).items():
            if key in candidates:
                partners[id(one)] = candidates[key]
    return [(partners[id(one)], one) for one in after if id(one) in partners]


def _unique(variant_of: Callable[[Cell], Hashable], scored: Iterable[Scored]) -> dict[Hashable, Scored]:
    """The evaluations by what a pair has in common, without those that share all of it with another one."""
    groups: dict[Hashable, list[Scored]] = defaultdict(list)
    for one in scored:
        cell, evaluation = one
        key = (
            cell.track, cell.backbone.name, cell.domain, cell.dataset.name, evaluation.dataset, cell.shots, cell.seed,
            cell.sources_rule, cell.method.name, variant_of(cell),
        )  # fmt: skip
        groups[key].append(one)
    return {key: group[0] for key, group in groups.items() if len(group) == 1}


def differing_switches(base: Protocol, protocol: Protocol) -> str:
    """The switches of ``protocol`` that differ from ``base``, as ``name = value``."""
    names = [field.name for field in fields(Protocol) if field.name != "name"]
    differing = [name for name in names if getattr(base, name) != getattr(protocol, name)]
    return ", ".join(f"{name} = {getattr(protocol, name)}" for name in differing)
