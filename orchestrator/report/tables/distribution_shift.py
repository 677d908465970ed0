"""Under distribution shift: methods x test sets, among all classes of the target and among a test set's own."""

from __future__ import annotations

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import expected_seeds, is_baseline, panel_slug, seeds_words
from orchestrator.report.analysis.statistics import Summary, seed_means, summarize
from orchestrator.report.styles import Styles
from orchestrator.report.tables.comparison import method_entry, with_notes
from orchestrator.report.tables.table import Entry, Table, flagged, marked_columns, measured


def shift_table(panel: Panel, k: int, styles: Styles) -> Table:
    """Methods x test sets at one k: the mean over the shifted ones first, then each of them.

    A test set that holds fewer classes than the target has two columns: among all classes, and among its own.
    """
    tests, partial = panel.tests(k), partial_tests(panel, k)
    header = ["method", "mean of shifted", *(["mean, own classes"] if partial else [])]
    for test in tests:
        header += [short_name(panel, test), *([f"{short_name(panel, test)}, own classes"] if test in partial else [])]
    rows = [[method_entry(method, styles), *_numbers(panel, k, method)] for method in panel.methods]
    averaged = len(panel.tests(k, averaged=True))
    note = (
        f"Accuracy in per cent, mean ± sample standard deviation over seeds ({seeds_words(panel)}). The mean is over "
        f"the {averaged} shifted test sets per seed, the target itself left out; after it the gain over zero-shot in "
        "points."
    )
    if partial:
        note += (
            " Own classes: predictions among the classes that occur in the test set alone. The mean of them takes the "
            "test sets with every class as they are."
        )
    at = f" at k = {k}" if k else ""
    return Table(
        name=f"shift_{panel_slug(panel)}_k{k}",
        title=f"Accuracy under distribution shift{at}, {panel.title}",
        note=with_notes(note, panel),
        header=tuple(header),
        rows=tuple(flagged(row, panel.selects_on_test) for row in marked_columns(rows)) if rows else (),
    )


def _numbers(panel: Panel, k: int, method: str) -> list[Entry]:
    """A method's line: means, then the accuracy on each test set."""
    seeds, partial = expected_seeds(panel, method), partial_tests(panel, k)
    mean = panel.mean(method, k)
    gain = None if is_baseline(panel, method) or mean.gain is None else mean.gain.mean
    missing = f"({mean.have}/{mean.of})"
    entries = [measured(mean.accuracy, gain=gain, missing=missing, seeds=seeds)]
    if partial:
        own, own_zero_shot = own_means(panel, k, method)
        own_gain = None if gain is None or own is None or own_zero_shot is None else own.mean - own_zero_shot.mean
        entries.append(measured(own, gain=own_gain, seeds=seeds))
    for test in panel.tests(k):
        entries.append(measured(panel.score(method, k, test), seeds=seeds))
        if test in partial:
            entries.append(measured(panel.own_classes(method, k, test), seeds=seeds))
    return entries


def own_means(panel: Panel, k: int, method: str) -> tuple[Summary | None, Summary | None]:
    """The mean over the shifted test sets, each among its own classes: of the method, and zero-shot on the same."""
    tests, partial = panel.tests(k, averaged=True), partial_tests(panel, k)
    method_scores: dict[str, dict[int, float]] = {}
    frozen_scores: dict[str, dict[int, float]] = {}
    for test in tests:
        for seed, row in panel.seed_rows(method, k, test).items():
            own, frozen = row.accuracy_own_classes, row.accuracy_zero_shot_own_classes
            if test not in partial:
                own, frozen = row.accuracy, row.accuracy_zero_shot
            if own is not None and frozen is not None:
                method_scores.setdefault(test, {})[seed] = own
                frozen_scores.setdefault(test, {})[seed] = frozen
    means = seed_means(method_scores, tests), seed_means(frozen_scores, tests)
    own_mean, frozen_mean = (summarize(list(found.values())) if found else None for found in means)
    return own_mean, frozen_mean


def partial_tests(panel: Panel, k: int) -> frozenset[str]:
    """The test sets that hold fewer classes than the target, by any row's word."""
    return frozenset(row.test for row in panel.rows if row.accuracy_own_classes is not None and row.k in (0, k))


def short_name(panel: Panel, test: str) -> str:
    """The test set's name alone where all are scored from one target."""
    targets = {row.dataset for row in panel.rows}
    name = test.rpartition(" → ")[2]
    if len(targets) > 1:
        return test
    return f"{name} (target)" if name in targets else name
