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
        protocol, base: the changed protocol and the one that it changes.
        method: a label; a dash if no cells could be paired.
        pairs: the evaluations under ``base`` and under ``protocol`` of every test split that both have.
    """

    protocol: Protocol
    base: Protocol
    track: str
    method: str
    pairs: tuple[tuple[Evaluation, Evaluation], ...]

    @property
    def differences(self) -> tuple[float, ...]:
        """Accuracy under ``protocol`` minus accuracy under ``base``, in points."""
        return tuple(after.accuracy - before.accuracy for before, after in self.pairs)

    @property
    def changed(self) -> int:
        """The number of pairs whose accuracy or counts per class differ at all."""
        return sum((a.accuracy, a.per_class) != (b.accuracy, b.per_class) for b, a in self.pairs)


def switch_effects(study: Study) -> Iterator[SwitchEffect]:
    """The effects of every protocol whose base protocol has results, in the study's order of tracks and methods.

    There is one effect for each label under the changed protocol; a single one without pairs if nothing matches.
    """
    results: dict[tuple[str, str], list[Result]] = defaultdict(list)
    protocols: dict[str, Protocol] = {}
    for result in study.results:
        protocols[result.cell.protocol.name] = result.cell.protocol
        results[result.cell.protocol.name, result.cell.track].append(result)
    for name, protocol in protocols.items():
        base = base_protocol(name, protocols)
        if base is None:
            continue
        for track in study.tracks:
            if (name, track) in results:
                pairs = _paired(results[base, track], results[name, track], study.labels)
                for method in [label for label in study.methods if label in pairs] or [DASH]:
                    yield SwitchEffect(protocol, protocols[base], track, method, tuple(pairs[method]))


def _paired(
    base: Iterable[Result], changed: Iterable[Result], labels: Mapping[str, str]
) -> Mapping[str, list[tuple[Evaluation, Evaluation]]]:
    """Pairs of evaluations whose cells differ only in the protocol, by label, in the order of ``changed``.

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
    pairs: dict[str, list[tuple[Evaluation, Evaluation]]] = defaultdict(list)
    for one in after:
        if id(one) in partners:
            pairs[labels[one[0].id]].append((partners[id(one)][1], one[1]))
    return pairs


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
