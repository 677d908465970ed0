"""What a method's settings do: curves over those that are numbers, differences for the rest.

Only one thing differs on each curve: a variant that changes two settings, or a setting and the sources, is on none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.cell import Cell
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import Summary, seed_means, summarize
from orchestrator.report.analysis.study import Study

SOURCES = "sources"
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Variant:
    """A label of a method.

    Attributes:
        sources: how many the rule gives it; ``None`` where targets differ.
        drawn: whether they may have been drawn at random: seeds do not share one choice of some of them.
    """

    label: str
    settings: Mapping[str, Any]
    rule: str
    sources: int | None
    drawn: bool

    def differences(self, other: Variant) -> list[str]:
        """The names of what differs."""
        keys = sorted(self.settings.keys() | other.settings.keys())
        found = [key for key in keys if self.settings.get(key) != other.settings.get(key)]
        return found + [SOURCES] * ((self.rule, self.sources) != (other.rule, other.sources))

    def number(self, key: str) -> float | None:
        """A setting as a number; ``None`` where it is none."""
        value = self.settings.get(key) if key != SOURCES else self.sources if self.drawn else None
        if isinstance(value, tuple | list) and len(value) == 1:
            value = value[0]
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def variants_of(study: Study, panel: Panel) -> dict[str, list[Variant]]:
    """By method, its labels in the panel, of methods that have several: the method as it is first."""
    if len({study.method_names[label] for label in panel.methods}) == len(panel.methods):
        return {}
    cells = {result.cell.id: result.cell for result in study.results}
    own: dict[str, list[Cell]] = {}
    for row in panel.rows:
        own.setdefault(row.method, []).append(cells[row.cell_id])
    found: dict[str, list[Variant]] = {}
    for label in panel.methods:
        counts, cell = {len(cell.sources) for cell in own[label]}, own[label][0]
        count = counts.pop() if len(counts) == 1 else None
        variant = Variant(label, cell.method.settings_dict(), cell.sources_rule, count, _drawn(own[label]))
        found.setdefault(cell.method.name, []).append(variant)
    for name, variants in found.items():
        variants.sort(key=lambda variant: variant.label != name)
        variants[0] = replace(variants[0], drawn=True)  # all there are
    return {name: variants for name, variants in found.items() if len(variants) > 1}


def _drawn(cells: Sequence[Cell]) -> bool:
    """Whether seeds have different sources; of one seed nobody can tell."""
    choices: dict[str, list[frozenset[str]]] = {}
    for cell in cells:
        choices.setdefault(f"{cell.dataset.name} {cell.shots}", []).append(frozenset(s.dataset for s in cell.sources))
    return any(len(set(own)) > 1 for own in choices.values()) or all(len(own) == 1 for own in choices.values())


def knobs_of(variants: Sequence[Variant]) -> dict[str, list[tuple[float, Variant]]]:
    """What is a number and alone differs from the first variant: at least two values of each, sorted."""
    base, knobs = variants[0], {}  # type: Variant, dict[str, list[tuple[float, Variant]]]
    for variant in variants[1:]:
        differing = variant.differences(base)
        if len(differing) == 1 and (value := variant.number(differing[0])) is not None:
            knobs.setdefault(differing[0], []).append((value, variant))
    for key, points in knobs.items():
        if (value := base.number(key)) is not None:
            points.append((value, base))
        points.sort(key=lambda point: point[0])
    return {key: points for key, points in knobs.items() if len(points) > 1}


def paired_difference(panel: Panel, label: str, base: str, k: int) -> Summary | None:
    """Mean difference over the averaged test splits per seed that both have, summarized over seeds."""
    tests = panel.tests(k, averaged=True)
    means = []
    for method in (label, base):
        rows = {test: panel.seed_rows(method, k, test) for test in tests}
        means.append(seed_means({test: {s: r.accuracy for s, r in own.items()} for test, own in rows.items()}, tests))
    both = [seed for seed in means[0] if seed in means[1]]
    return summarize([means[0][seed] - means[1][seed] for seed in both]) if both else None
