"""Accuracy on every test split of a target: under distribution shift, and on base and new classes."""

from __future__ import annotations

from orchestrator.analysis.rows import Row, test_name
from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.tables.common import method_entry, panel_table, score_entry, summary_entry, with_warnings
from orchestrator.report.tables.table import Entry, Table, highlighted_columns
from orchestrator.tracks.base_to_new import BASE_CLASSES, HARMONIC_MEAN, NEW_CLASSES


def shift_table(study: Study, panel: Panel, k: int) -> Table:
    """Methods x test sets at one k: first the mean over the shifted test sets, then each test set.

    A test set that has fewer classes than the target gets two columns: accuracy among all classes, and among its own.
    """
    tests, partial = panel.tests(k), _partial_tests(panel, k)
    header = ["method", "mean of shifted", *(["mean, own classes"] if partial else [])]
    for test in tests:
        name = _test_title(panel, test)
        header += [name, f"{name}, own classes"] if test in partial else [name]
    rows = [[method_entry(study, method), *_shift_entries(panel, k, method)] for method in panel.methods]
    averaged = len(panel.tests(k, averaged=True))
    note = (
        f"Accuracy in per cent, mean ± sample standard deviation over seeds ({panel.seeds_text}). The mean is over "
        f"the {averaged} shifted test sets per seed, the target itself left out; after it the gain over zero-shot in "
        "points."
    )
    if partial:
        note += (
            " Own classes: predictions among the classes that occur in the test set alone. The mean of them takes the "
            "test sets with every class as they are."
        )
    note = with_warnings(note, panel, study.display_names)
    return panel_table(
        panel, "shift", "Accuracy under distribution shift", note, header, highlighted_columns(rows), k=k
    )


def _shift_entries(panel: Panel, k: int, method: str) -> list[Entry]:
    """The numbers of one method: the means, then the accuracy on each test set."""
    partial, missing = _partial_tests(panel, k), f"({panel.measured_tests(method, k)})"
    gain = None if panel.is_zero_shot(method) else panel.mean(method, k, lambda row: row.gain)
    mean_gain = gain.mean if gain else None
    entries = [summary_entry(panel, method, panel.mean(method, k), gain=mean_gain, missing=missing)]
    if partial:
        own, zero_shot = _own_class_means(panel, k, method)
        own_gain = None if gain is None or own is None or zero_shot is None else own.mean - zero_shot.mean
        entries.append(summary_entry(panel, method, own, gain=own_gain))
    for test in panel.tests(k):
        entries.append(score_entry(panel, method, k, test))
        if test in partial:
            own = panel.mean(method, k, lambda row: row.accuracy_own_classes, tests=[test])
            entries.append(summary_entry(panel, method, own))
    return entries


def _own_class_means(panel: Panel, k: int, method: str) -> tuple[Summary | None, Summary | None]:
    """Means over the shifted test sets, each among its own classes: of the method, and of zero-shot."""
    partial = _partial_tests(panel, k)

    def own(row: Row) -> float | None:
        return row.accuracy_own_classes if row.test in partial else row.accuracy

    def zero_shot(row: Row) -> float | None:
        return row.accuracy_zero_shot_own_classes if row.test in partial else row.accuracy_zero_shot

    return panel.mean(method, k, own), panel.mean(method, k, zero_shot)


def _partial_tests(panel: Panel, k: int) -> frozenset[str]:
    """The test sets with fewer classes than the target."""
    return frozenset(row.test for row in panel.rows if row.accuracy_own_classes is not None and row.k in (0, k))


def _test_title(panel: Panel, test: str) -> str:
    """The name of the test set; with the target's name before it if the panel has several targets."""
    targets = {row.dataset for row in panel.rows}
    if len(targets) > 1:
        return test
    name = test.rpartition(" → ")[2]
    return f"{name} (target)" if name in targets else name


def base_to_new_table(study: Study, panel: Panel, k: int) -> Table | None:
    """Methods x (base, new, harmonic mean, all classes) at one k, averaged over datasets; ``None`` on other tracks."""
    if panel.track.base_classes is None:
        return None
    datasets = sorted({row.dataset for row in panel.rows})
    groups = (BASE_CLASSES, NEW_CLASSES, HARMONIC_MEAN)
    columns = [*([test_name(dataset, group) for dataset in datasets] for group in groups), datasets]
    rows = []
    for method in panel.methods:
        entries = (summary_entry(panel, method, panel.mean(method, k, tests=tests)) for tests in columns)
        rows.append([method_entry(study, method), *entries])
    note = (
        f"Accuracy in per cent, mean ± sample standard deviation over seeds ({panel.seeds_text}), averaged over "
        "datasets. Methods are adapted to the base classes. Base and new: predictions among the classes of that group "
        "alone. The harmonic mean of the two is taken for each dataset and seed. All: every test image, predicted "
        "among all classes."
    )
    note = with_warnings(note, panel, study.display_names)
    header = ["method", "base", "new", "harmonic mean", "all"]
    title = "Accuracy on base and new classes"
    return panel_table(panel, "base_to_new", title, note, header, highlighted_columns(rows), k=k)
