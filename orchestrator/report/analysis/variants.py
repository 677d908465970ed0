"""Variants: several labels of one method, which differ in settings or in how many sources they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.analysis.seed_means import Summary, summarize
from orchestrator.core.cell import Cell
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.util.grouping import grouped

SOURCES = "sources"
"""The name under which the number of sources is listed among the settings of a method."""


@dataclass(frozen=True)
class Variant:
    """One label of a method with its settings.

    Attributes:
        rule: the field ``sources_rule`` of the variant's cells.
        sources: number of sources of a cell; ``None`` if it differs between targets.
        random_sources: whether the number of sources counts as a numeric setting. It counts for the first variant,
            which uses all sources, and where the sources may have been drawn at random. It does not count if all seeds
            use the same few sources, because the grid then names these sources.
    """

    label: str
    settings: Mapping[str, Any]
    rule: str
    sources: int | None
    random_sources: bool

    def differences(self, other: Variant) -> list[str]:
        """Return the names of the settings that differ, and ``SOURCES`` if the sources differ."""
        keys = sorted(self.settings.keys() | other.settings.keys())
        names = [key for key in keys if self.settings.get(key) != other.settings.get(key)]
        return names + [SOURCES] * ((self.rule, self.sources) != (other.rule, other.sources))

    def number(self, name: str) -> float | None:
        """Return the value of a setting, or the number of sources, as a float; ``None`` if it is no number."""
        value = self.settings.get(name) if name != SOURCES else self.sources if self.random_sources else None
        if isinstance(value, tuple | list) and len(value) == 1:
            value = value[0]
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def variants_of(grid: GridResults, group: ComparisonGroup) -> dict[str, list[Variant]]:
    """Return the variants of every method that has several labels in the group, by method name.

    A variant whose label is the method's name comes first.
    """
    if len({grid.method_names[label] for label in group.methods}) == len(group.methods):
        return {}
    rows = grouped(group.rows, lambda row: row.method)
    by_method: dict[str, list[Variant]] = {}
    for label in group.methods:
        cells = [grid.cells[row.cell_id] for row in rows[label]]
        counts, cell, random = {len(cell.sources) for cell in cells}, cells[0], _random_sources(cells)
        count = counts.pop() if len(counts) == 1 else None
        variant = Variant(label, cell.method.settings_dict(), cell.sources_rule, count, random)
        by_method.setdefault(cell.method.name, []).append(variant)
    for name, variants in by_method.items():
        variants.sort(key=lambda variant: variant.label != name)
        # The first variant uses all sources, not a few named ones, so its number of sources is a numeric setting.
        variants[0] = replace(variants[0], random_sources=True)
    return {name: variants for name, variants in by_method.items() if len(variants) > 1}


def _random_sources(cells: Sequence[Cell]) -> bool:
    """Return whether the sources may have been drawn at random.

    This is so if seeds have different sources, or if there is only one seed.
    """
    seeds = grouped(cells, lambda cell: (cell.dataset.name, cell.shots)).values()
    choices = [{frozenset(source.dataset for source in cell.sources) for cell in own} for own in seeds]
    return any(len(own) > 1 for own in choices) or all(len(own) == 1 for own in seeds)


def numeric_settings(variants: Sequence[Variant]) -> dict[str, list[tuple[float, Variant]]]:
    """Return the settings that curves are drawn over: name -> pairs (value, variant), sorted by value.

    There are at least two pairs for each setting. Every variant differs from the first one in this setting alone. A
    variant that changes two settings, or a setting and the sources, is on no curve.
    """
    base = variants[0]
    curves: dict[str, list[tuple[float, Variant]]] = {}
    for variant in variants[1:]:
        names = variant.differences(base)
        value = variant.number(names[0]) if len(names) == 1 else None
        if value is not None:
            curves.setdefault(names[0], []).append((value, variant))
    for name, points in curves.items():
        if (value := base.number(name)) is not None:
            points.append((value, base))
        points.sort(key=lambda point: point[0])
    return {name: points for name, points in curves.items() if len(points) > 1}


def paired_difference(group: ComparisonGroup, label: str, base: str, k: int) -> Summary | None:
    """Return the score of ``label`` minus that of ``base``: mean and deviation over the seeds that both have.

    The score of a seed is its mean over test splits. ``None`` without a common seed.
    """
    changed, unchanged = group.seed_means(label, k), group.seed_means(base, k)
    differences = [mean - unchanged[seed] for seed, mean in changed.items() if seed in unchanged]
    return summarize(differences) if differences else None
