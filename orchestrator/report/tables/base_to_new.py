"""Base to new: accuracy on base classes, on new classes, their harmonic mean, and accuracy among all classes."""

from __future__ import annotations

from orchestrator.analysis.rows import test_name
from orchestrator.analysis.seed_means import summarize_seeds
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.tables.common import method_entry, panel_table, with_warnings
from orchestrator.report.tables.table import Entry, Table, highlighted_columns, measured
from orchestrator.tracks.base_to_new import BASE_CLASSES, HARMONIC_MEAN, NEW_CLASSES


def base_to_new_table(study: Study, panel: Panel, k: int) -> Table | None:
    """Methods x (base, new, harmonic mean, all classes) at one k, averaged over datasets; ``None`` on other tracks."""
    if panel.track.base_classes is None:
        return None
    rows = [[method_entry(study, method), *_entries(panel, k, method)] for method in panel.methods]
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


def _entries(panel: Panel, k: int, method: str) -> list[Entry]:
    """The four numbers of one method."""
    datasets, seeds = sorted({row.dataset for row in panel.rows}), panel.expected_seeds(method)
    tests = [
        [test_name(dataset, group) for dataset in datasets] for group in (BASE_CLASSES, NEW_CLASSES, HARMONIC_MEAN)
    ]
    means = [
        summarize_seeds({test: _accuracies(panel, k, method, test) for test in of_group}, of_group)
        for of_group in (*tests, datasets)
    ]
    return [measured(mean, seeds=seeds, digits=panel.digits) for mean in means]


def _accuracies(panel: Panel, k: int, method: str, test: str) -> dict[int, float]:
    """Accuracy of one method on one test split, by seed."""
    return {seed: row.accuracy for seed, row in panel.rows_by_seed(method, k, test).items()}
