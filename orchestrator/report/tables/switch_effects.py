"""The table of what single switches of a protocol do."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from orchestrator.report.analysis.panel import TRACK_TITLES
from orchestrator.report.analysis.statistics import summarize
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.switch_effects import EVERY_METHOD, Effect, effects_of
from orchestrator.report.tables.table import Entry, Table, flagged, number, without_constant_columns, word
from orchestrator.report.text import DASH, signed


def effects_table(study: Study) -> Table | None:
    """Switches x methods; ``None`` where no protocol stands beside the one that it changes."""
    groups: dict[tuple[str, str], list[Effect]] = defaultdict(list)
    for effect in effects_of(study):
        groups[effect.protocol, effect.track].append(effect)
    if not groups:
        return None
    rows: list[tuple[Entry, ...]] = []
    for effects in groups.values():
        if len(effects) > 1 and all(effect.differences and not effect.changed for effect in effects):
            pairs = sum((effect.differences for effect in effects), ())
            effects = [replace(effects[0], method=EVERY_METHOD, differences=pairs)]
        rows += [_line(effect) for effect in effects]
    table = Table(
        name="effects",
        title="Effects of single switches",
        note="Accuracy with the switch turned minus accuracy without it, in points: mean ± sample standard deviation "
        "over the n test splits (of every backbone, dataset, k and seed) that both have measured with the same method; "
        "seeds of one dataset are no independent witnesses. No effect: every count of every class is the same.",
        header=("switch", "base", "track", "method", "effect", "points", "n"),
        rows=tuple(rows),
        words=5,
    )
    return without_constant_columns(table, 2, 3)


def _line(effect: Effect) -> tuple[Entry, ...]:
    n = len(effect.differences)
    if not n:
        says, points = word("no cell in common"), Entry(DASH)
    else:
        summary = summarize(effect.differences)
        says = word("no effect" if not effect.changed else f"{effect.changed} of {n} differ")
        aside = f"{effect.other_images} on other images" if effect.other_images else ""
        points = Entry(signed(summary.mean), value=summary.mean, spread=summary.std, aside=aside)
        if not effect.changed:
            points = Entry(signed(0.0), value=0.0, aside=aside)
    track = TRACK_TITLES.get(effect.track, effect.track)
    words = (word(effect.changes), word(effect.base), word(track), word(effect.method))
    return flagged((*words, says, points, number(n, "d")), effect.selects_on_test)
