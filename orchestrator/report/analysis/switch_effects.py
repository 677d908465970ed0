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
    def changed(self) -> int:
        """The number of pairs whose accuracy or counts per class differ at all."""
        return sum((a.accuracy, a.per_class) != (b.accuracy, b.per_class) for b, a in self.pairs)


def switch_effects(study: Study) -> Iterator[list[SwitchEffect]]:
    """For each track and each protocol whose base protocol has results, the effects on every method.

    There is one effect for each label under the changed protocol; a single one without pairs if nothing matches.
    """
    results: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in study.results:
        results[result.cell.protocol.name, result.cell.track].append(result)
    protocols = {result.cell.protocol.name: result.cell.protocol for result in study.results}
    for name, protocol in protocols.items():
        base = base_protocol(name, protocols)
        if base is None:
            continue
        for track in study.tracks:
            if (name, track) in results:
                pairs = _paired(results[base, track], results[name, track], study.labels)
                methods = [label for label in study.methods if label in pairs] or [DASH]
                yield [SwitchEffect(protocol, protocols[base], track, m, tuple(pairs[m])) for m in methods]


def _paired(
    base: Iterable[Result], changed: Iterable[Result], labels: Mapping[str, str]
) -> Mapping[str, list[tuple[Evaluation, Evaluation]]]:
    """Pairs of evaluations whose cells differ only in the protocol, by label, in the order of ``changed``.

    Cells of a pair share backbone, domain, dataset, k, seed, rule for sources and method. The methods match by their
    settings; cells without such a partner match by label. If several cells match, none of them is used.
    """
    partners: dict[str, Result] = {}  # by the id of the changed cell
    for variant_of in (lambda cell: cell.method.settings, lambda cell: labels[cell.id]):
        used = {partner.cell.id for partner in partners.values()}
        candidates = _unique(variant_of, (result for result in base if result.cell.id not in used))
        for key, result in _unique(variant_of, (r for r in changed if r.cell.id not in partners)).items():
            if key in candidates:
                partners[result.cell.id] = candidates[key]
    pairs: dict[str, list[tuple[Evaluation, Evaluation]]] = defaultdict(list)
    for result in changed:
        partner = partners.get(result.cell.id)
        before = {evaluation.dataset: evaluation for evaluation in partner.evaluations} if partner else {}
        for after in result.evaluations:
            if after.dataset in before:
                pairs[labels[result.cell.id]].append((before[after.dataset], after))
    return pairs


def _unique(variant_of: Callable[[Cell], Hashable], results: Iterable[Result]) -> dict[Hashable, Result]:
    """The results by what the cells of a pair have in common, without those that share all of it with another one."""
    groups: dict[Hashable, list[Result]] = defaultdict(list)
    for result in results:
        cell = result.cell
        key = (
            cell.backbone.name, cell.domain, cell.dataset.name, cell.shots, cell.seed, cell.sources_rule,
            cell.method.name, variant_of(cell),
        )  # fmt: skip
        groups[key].append(result)
    return {key: group[0] for key, group in groups.items() if len(group) == 1}


def switches_text(protocol: Protocol, base: Protocol | None = None) -> str:
    """The switches of ``protocol`` as ``name = value``; with ``base`` only those that differ from it."""
    switches = [(field.name, getattr(protocol, field.name)) for field in fields(Protocol) if field.name != "name"]
    return ", ".join(f"{name} = {value}" for name, value in switches if not base or value != getattr(base, name))
