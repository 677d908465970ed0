"""The table of what each switch of a protocol changes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from orchestrator.analysis.seed_means import summarize
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.switch_effects import SwitchEffect, differing_switches, switch_effects
from orchestrator.report.notation import DASH, signed
from orchestrator.report.tables.common import method_entry
from orchestrator.report.tables.table import Entry, Table, number, with_dagger
from orchestrator.tracks import stored_track


def effects_table(study: Study) -> Table | None:
    """Switches x methods; ``None`` if no protocol has results together with the protocol that it changes.

    A switch that changes nothing for any method gets one row for all methods.
    """
    groups: dict[tuple[str, str], list[SwitchEffect]] = defaultdict(list)
    for effect in switch_effects(study):
        groups[effect.protocol.name, effect.track].append(effect)
    if not groups:
        return None
    rows: list[tuple[Entry, ...]] = []
    for effects in groups.values():
        if len(effects) > 1 and all(effect.pairs and not effect.changed for effect in effects):
            pairs = tuple(pair for effect in effects for pair in effect.pairs)
            effects = [replace(effects[0], method="every method", pairs=pairs)]
        rows += [_row(study, effect) for effect in effects]
    return Table(
        name="effects",
        title="Effects of single switches",
        note="Accuracy with the switch minus accuracy without it, in points: mean ± sample standard deviation over "
        "the n test splits (of every backbone, dataset, k and seed) that both have measured with the same method. "
        "Seeds of one dataset are not independent of each other. No effect: every count of every class is the same.",
        header=("switch", "base", "track", "method", "effect", "points", "n"),
        rows=tuple(rows),
        text_columns=5,
    ).without_constant_columns(2, 3)


def _row(study: Study, effect: SwitchEffect) -> tuple[Entry, ...]:
    n = len(effect.pairs)
    other_images = sum(before.total != after.total for before, after in effect.pairs)
    remark = f"{other_images} on other images" if other_images else ""
    if not n:
        description, points = "no cell in common", Entry(DASH)
    elif not effect.changed:
        description, points = "no effect", Entry(signed(0.0), value=0.0, remark=remark)
    else:
        mean = summarize(effect.differences)
        description = f"{effect.changed} of {n} differ"
        points = Entry(signed(mean.mean), value=mean.mean, std=mean.std, remark=remark)
    switches = differing_switches(effect.base, effect.protocol)
    texts = map(Entry, (switches, effect.base.name, stored_track(effect.track).title))
    selected = effect.base.selects_on_test or effect.protocol.selects_on_test
    return with_dagger(
        (*texts, method_entry(study, effect.method), Entry(description), points, number(n, "d")), selected
    )
