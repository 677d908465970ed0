"""What a change does: variants of one method side by side, and the effects of single switches of a protocol."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from bolt.protocol import Protocol
from orchestrator.analysis.comparable import base_protocol
from orchestrator.analysis.display_names import title_of
from orchestrator.analysis.seed_means import summarize
from orchestrator.core.cell import Cell
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.analysis.variants import variants_of
from orchestrator.report.styles import DASH, k_title, signed
from orchestrator.report.tables.common import group_table, mean_entry, method_entry
from orchestrator.report.tables.table import Entry, Table, number, with_dagger
from orchestrator.store.results import Evaluation, Result
from orchestrator.tracks import stored_track
from orchestrator.util.grouping import grouped


def variants_tables(grid: GridResults, group: ComparisonGroup) -> Iterator[Table]:
    """Make a table for each method with several labels in the group: label, settings that differ, mean at each k."""
    for name, variants in variants_of(grid, group).items():
        variants = sorted(variants, key=lambda variant: grid.methods.index(variant.label))
        keys = sorted({key for variant in variants for key in variant.settings})
        differing = [key for key in keys if len({repr(variant.settings.get(key)) for variant in variants}) > 1]
        rows = []
        for variant in variants:
            values = (Entry(setting_text(variant.settings.get(key))) for key in differing)
            means = (mean_entry(group, variant.label, k) for k in group.ks)
            rows.append([method_entry(grid, variant.label), *values, *means])
        note = (
            f"The settings that differ, then mean {group.mean_text} over datasets ± sample standard "
            f"deviation over seeds ({group.seeds_text}) and the gain over zero-shot in points."
        )
        settings = (key.replace("_", " ") for key in differing)
        header = ("variant", *settings, *(k_title(k, group.metric.title) for k in group.ks))
        kind, title, texts = f"ablation_{name}", f"Variants of {title_of(name)}", 1 + len(differing)
        yield group_table(group, kind, title, note, header, rows, best=True, warned=grid, text_columns=texts)


def setting_text(value: Any) -> str:
    """Return the value of a setting as tables print it."""
    if value is None or value == ():
        return DASH
    if isinstance(value, tuple | list):
        return ", ".join(map(setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def effects_table(grid: GridResults) -> Table | None:
    """Make a table of what each changed switch of a protocol does to each method.

    A switch that changes nothing for any method gets one row for all methods. ``None`` if no changed protocol has
    results together with its base protocol.
    """
    rows: list[tuple[Entry, ...]] = []
    for effects in switch_effects(grid):
        if len(effects) > 1 and all(effect.pairs and not effect.changed for effect in effects):
            pairs = tuple(pair for effect in effects for pair in effect.pairs)
            effects = [replace(effects[0], method="every method", pairs=pairs)]
        rows += [_effect_row(grid, effect) for effect in effects]
    if not rows:
        return None
    note = (
        "Accuracy with the switch minus accuracy without it, in points: mean ± sample standard deviation over "
        "the n test splits (of every backbone, dataset, k and seed) on which the method was measured both ways. "
        "Seeds of one dataset are not independent of each other. 'No effect' means that every class has the same "
        "numbers of images and of correct images with and without the switch."
    )
    header = ("switch", "base", "track", "method", "effect", "points", "n")
    table = Table("effects", "Effects of single switches", note, header, tuple(rows), text_columns=5)
    return table.without_constant_columns(2, 3)


def _effect_row(grid: GridResults, effect: SwitchEffect) -> tuple[Entry, ...]:
    n = len(effect.pairs)
    other_images = sum(before.total != after.total for before, after in effect.pairs)
    remark = f"{other_images} on other images" if other_images else ""
    if not n:
        description, points = "no cell in common", Entry(DASH)
    elif not effect.changed:
        description, points = "no effect", Entry(signed(0.0), value=0.0, remark=remark)
    else:
        mean = summarize([after.accuracy - before.accuracy for before, after in effect.pairs])
        description = f"{effect.changed} of {n} differ"
        points = Entry(signed(mean.mean), value=mean.mean, std=mean.std, remark=remark)
    switches = switches_text(effect.protocol, effect.base)
    texts = map(Entry, (switches, effect.base.name, stored_track(effect.track).title))
    selected = effect.base.selects_on_test(effect.track) or effect.protocol.selects_on_test(effect.track)
    row = (*texts, method_entry(grid, effect.method), Entry(description), points, number(n, "d"))
    return with_dagger(row, selected)


@dataclass(frozen=True)
class SwitchEffect:
    """What changed switches of a protocol do to one method on one track, compared with the base protocol.

    A switch is one setting of a protocol.

    Attributes:
        protocol, base: the protocol with changed switches, and the protocol without the changes.
        method: a label; a dash if no cells could be paired.
        pairs: (evaluation under ``base``, evaluation under ``protocol``) for every test split that both have.
    """

    protocol: Protocol
    base: Protocol
    track: str
    method: str
    pairs: tuple[tuple[Evaluation, Evaluation], ...]

    @property
    def changed(self) -> int:
        """The number of pairs that differ in the accuracy, or in the counts (correct, total) of any class."""
        return sum((a.accuracy, a.per_class) != (b.accuracy, b.per_class) for b, a in self.pairs)


def switch_effects(grid: GridResults) -> Iterator[list[SwitchEffect]]:
    """Yield a list of effects for each changed protocol whose base protocol has results, and for each of its tracks.

    The list has one effect for each method label. A label is left out if none of its cells could be paired with a cell
    under the base protocol. If all labels are left out, the list has a single effect without pairs.
    """
    results = grouped(grid.results, lambda result: (result.cell.protocol.name, result.cell.track))
    protocols = {result.cell.protocol.name: result.cell.protocol for result in grid.results}
    for name, protocol in protocols.items():
        if (base := base_protocol(name, protocols)) is None:
            continue
        for track in grid.tracks:
            if (name, track) in results:
                pairs = _paired(results.get((base, track), ()), results[name, track], grid.labels)
                methods = [label for label in grid.methods if label in pairs] or [DASH]
                yield [SwitchEffect(protocol, protocols[base], track, m, tuple(pairs[m])) for m in methods]


def _paired(
    base: Iterable[Result], changed: Iterable[Result], labels: Mapping[str, str]
) -> Mapping[str, list[tuple[Evaluation, Evaluation]]]:
    """Return label of the changed cell -> pairs of evaluations: under the base protocol and under the changed one.

    The two evaluations of a pair are on the same test split, and pairs are in the order of ``changed``. The two cells
    of a pair share backbone, domain, dataset, k, seed, rule for sources and method. First, cells with equal settings of
    the method are paired, then the remaining cells with equal labels. A cell that matches several others is left out.
    """
    partners: dict[str, Result] = {}  # id of the changed cell -> result under the base protocol
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
    """Return key -> result. If several results have the same key, all of them are left out.

    Two cells with equal keys can be paired (:func:`_paired`). The key consists of backbone, domain, dataset, k, seed,
    rule for sources, method and ``variant_of(cell)``.
    """

    def shared(result: Result) -> Hashable:
        cell = result.cell
        place = (cell.backbone.name, cell.domain, cell.dataset.name, cell.shots, cell.seed, cell.sources_rule)
        return *place, cell.method.name, variant_of(cell)

    return {key: group[0] for key, group in grouped(results, shared).items() if len(group) == 1}


def switches_text(protocol: Protocol, base: Protocol | None = None) -> str:
    """Return the switches of ``protocol`` as ``name = value``; with ``base`` only those that differ from it."""
    switches = [(field.name, getattr(protocol, field.name)) for field in fields(Protocol) if field.name != "name"]
    return ", ".join(f"{name} = {value}" for name, value in switches if not base or value != getattr(base, name))
