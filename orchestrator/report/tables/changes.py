"""What a change does: variants of one method side by side, and the effects of single switches of a protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from orchestrator.analysis.display_names import title_of
from orchestrator.analysis.seed_means import summarize
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.switch_effects import SwitchEffect, switch_effects, switches_text
from orchestrator.report.analysis.variants import variants_of
from orchestrator.report.notation import DASH, k_title, signed
from orchestrator.report.tables.common import mean_entry, method_entry, panel_table, with_warnings
from orchestrator.report.tables.table import Entry, Table, highlighted_columns, number, with_dagger
from orchestrator.tracks import stored_track


def variants_tables(study: Study, panel: Panel) -> Iterator[Table]:
    """For each method that has several labels in the panel: label, settings that differ, and the mean at each k."""
    for name, variants in variants_of(study, panel).items():
        variants = sorted(variants, key=lambda variant: study.methods.index(variant.label))
        keys = sorted({key for variant in variants for key in variant.settings})
        differing = [key for key in keys if len({repr(variant.settings.get(key)) for variant in variants}) > 1]
        rows = []
        for variant in variants:
            values = (Entry(setting_text(variant.settings.get(key))) for key in differing)
            means = (mean_entry(panel, variant.label, k) for k in panel.ks)
            rows.append([method_entry(study, variant.label), *values, *means])
        note = (
            "The settings that differ, then mean accuracy in per cent over datasets ± sample standard deviation over "
            f"seeds ({panel.seeds_text}) and the gain over zero-shot in points."
        )
        note = with_warnings(note, panel, study.display_names)
        header = ("variant", *(key.replace("_", " ") for key in differing), *map(k_title, panel.ks))
        kind, title, texts = f"ablation_{name}", f"Variants of {title_of(name)}", 1 + len(differing)
        yield panel_table(panel, kind, title, note, header, highlighted_columns(rows, texts), text_columns=texts)


def setting_text(value: Any) -> str:
    """The value of a setting as tables print it."""
    if value is None or value == ():
        return DASH
    if isinstance(value, tuple | list):
        return ", ".join(map(setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def effects_table(study: Study) -> Table | None:
    """Switches x methods; ``None`` if no protocol has results together with the protocol that it changes.

    A switch that changes nothing for any method gets one row for all methods.
    """
    rows: list[tuple[Entry, ...]] = []
    for effects in switch_effects(study):
        if len(effects) > 1 and all(effect.pairs and not effect.changed for effect in effects):
            pairs = tuple(pair for effect in effects for pair in effect.pairs)
            effects = [replace(effects[0], method="every method", pairs=pairs)]
        rows += [_effect_row(study, effect) for effect in effects]
    if not rows:
        return None
    note = (
        "Accuracy with the switch minus accuracy without it, in points: mean ± sample standard deviation over "
        "the n test splits (of every backbone, dataset, k and seed) that both have measured with the same method. "
        "Seeds of one dataset are not independent of each other. No effect: every count of every class is the same."
    )
    header = ("switch", "base", "track", "method", "effect", "points", "n")
    table = Table("effects", "Effects of single switches", note, header, tuple(rows), text_columns=5)
    return table.without_constant_columns(2, 3)


def _effect_row(study: Study, effect: SwitchEffect) -> tuple[Entry, ...]:
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
    selected = effect.base.selects_on_test or effect.protocol.selects_on_test
    row = (*texts, method_entry(study, effect.method), Entry(description), points, number(n, "d"))
    return with_dagger(row, selected)
