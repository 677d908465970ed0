"""Accuracy of every method: by k, dataset, test set, group of classes and epoch, and beside published accuracy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from orchestrator.analysis.rows import Row, test_name
from orchestrator.analysis.seed_means import Summary, summarize
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import k_title
from orchestrator.report.tables.common import (
    mean_entry,
    method_entry,
    panel_table,
    score_entry,
    summary_entry,
    with_warnings,
)
from orchestrator.report.tables.table import (
    Entry,
    Table,
    difference,
    highlighted,
    highlighted_columns,
    measured,
    number,
    with_dagger,
)
from orchestrator.tracks import stored_track
from orchestrator.tracks.base_to_new import BASE_CLASSES, HARMONIC_MEAN, NEW_CLASSES
from orchestrator.util.identity import slug

_EPOCHS = (1, 2, 5, 10, 20)


def main_table(study: Study, panel: Panel) -> Table:
    """Make methods x k: mean and deviation over seeds of each seed's mean over datasets, and gain over zero-shot."""
    rows = [
        [method_entry(study, method), *(mean_entry(panel, method, k) for k in panel.ks)] for method in panel.methods
    ]
    track = panel.track
    noun = "dataset" if track.averages_target else "shifted test set"
    score = f"{track.group_mean.name} of {' and '.join(track.class_groups)}" if track.group_mean else "accuracy"
    note = (
        f"Mean {score} in per cent over {panel.dataset_count(noun)} per seed, then mean ± sample standard deviation "
        f"over seeds ({panel.seeds_text}); below it the gain over zero-shot in points."
    )
    dash_note = "A dash: no seed has every dataset yet."
    title = "Accuracy by method and shots" if any(panel.ks) else "Mean accuracy by method"
    header = ("method", *map(k_title, panel.ks))
    note = with_warnings(note, panel, study.display_names)
    return panel_table(panel, "main", title, note, header, highlighted_columns(rows), dash_note=dash_note)


def dataset_table(study: Study, panel: Panel, k: int) -> Table:
    """Make datasets x methods at one k; the last row is the mean over datasets."""
    rows = [
        (Entry(test), *highlighted([score_entry(panel, method, k, test) for method in panel.methods]))
        for test in panel.tests(k)
    ]
    means = [
        summary_entry(panel, method, panel.mean(method, k), missing=f"({panel.measured_tests(method, k)})")
        for method in panel.methods
    ]
    group_mean = panel.track.group_mean
    of = " of shifted" if panel.track.scores_variants else f" of {group_mean.name}s" if group_mean else ""
    rows.append((Entry(f"mean{of}"), *highlighted(means)))
    note = f"Accuracy in per cent, mean ± sample standard deviation over seeds ({panel.seeds_text})."
    note = with_warnings(note, panel, study.display_names)
    header = ("dataset", *(study.display_names[method] for method in panel.methods))
    fields = {"summary_rows": 1, "header_codes": ("dataset", *panel.methods)}
    return panel_table(panel, "datasets", "Accuracy by dataset", note, header, rows, k=k, **fields)


def epochs_table(study: Study, panel: Panel, k: int) -> Table | None:
    """Make methods x epochs 1, 2, 5, 10, 20 and the last; ``None`` if no cell was scored after its epochs."""
    last = panel.last_epoch
    if not last:
        return None
    epochs = sorted({epoch for epoch in _EPOCHS if epoch <= last} | {last})
    rows = []
    for method in panel.methods:
        means = [panel.epoch_mean(method, k, epoch) for epoch in epochs]
        rows.append([method_entry(study, method), *(summary_entry(panel, method, mean) for mean in means)])
    note = (
        f"Accuracy in per cent on the targets' test splits, mean over {panel.dataset_count('target')} per seed, "
        f"then mean ± sample standard deviation over seeds ({panel.seeds_text})."
    )
    dash_note = "A dash: the method has no epochs, fewer of them, or no seed with every target."
    header = ("method", *(f"epoch {epoch}" for epoch in epochs))
    rows = highlighted_columns(rows)
    return panel_table(panel, "epochs", "Accuracy after each epoch", note, header, rows, k=k, dash_note=dash_note)


def explorer_tables(study: Study) -> Iterator[Table]:
    """Make one long table for each track, of every dataset, backbone, protocol and k, to filter and sort."""
    note = "Accuracy in per cent, mean ± sample standard deviation over seeds; the pointer over a number shows n."
    titles = ("dataset", "domain", "backbone", "protocol", "k")
    for track in study.tracks:
        panels = [panel for panel in study.panels if panel.key.track == track and not panel.key.ablations]
        methods = [method for method in study.methods if any(method in panel.methods for panel in panels)]
        methods.sort(key=lambda method: not any(method in panel.fixed for panel in panels))
        yield Table(
            name=f"explorer_{slug(track)}",
            title=f"Every dataset, {stored_track(track).title}",
            note=note,
            header=(*titles, *(study.display_names[method] for method in methods)),
            header_codes=(*titles, *methods),
            rows=tuple(
                _explorer_row(panel, k, test, methods) for panel in panels for k in panel.ks for test in panel.tests(k)
            ),
            text_columns=4,
        ).without_constant_columns(1, 5)


def _explorer_row(panel: Panel, k: int, test: str, methods: list[str]) -> tuple[Entry, ...]:
    """Make the row of one dataset at one k of a panel: what it is, and the accuracy of every method."""
    scores = [score_entry(panel, method, k, test) for method in methods]
    texts = map(Entry, (test, panel.key.domain, panel.key.backbone, panel.key.protocol))
    return with_dagger((*texts, number(k, "d"), *highlighted(scores)), panel.selects_on_test)


def published_table(study: Study) -> Table | None:
    """Make one row for each measurement that has a published accuracy; ``None`` if there is no such measurement.

    Variants of a method are left out if the method itself was measured: the paper prints no variants.
    """
    groups: dict[tuple[str, str, str, str, str, str, int], list[Row]] = defaultdict(list)
    without_changes = {row.method_name for row in study.rows if row.method == row.method_name}
    for row in study.rows:
        if row.published is not None and (row.method == row.method_name or row.method_name not in without_changes):
            key = (row.test, row.method, row.track, row.protocol, row.domain, row.backbone, row.k)
            groups[key].append(row)
    if not groups:
        return None
    rows = []
    for (*texts, k), own in groups.items():
        published = summarize([row.published for row in own if row.published is not None]).mean
        accuracy = summarize([row.accuracy for row in own])
        numbers = (number(k, "d"), measured(accuracy), number(published), difference(accuracy.mean - published))
        test, method, *others = map(str, texts)
        names = (Entry(test), method_entry(study, method), *map(Entry, others))
        rows.append(with_dagger((*names, *numbers), any(row.selects_on_test for row in own)))
    note = "Measured (mean ± sample standard deviation over seeds) beside the published accuracy, in per cent."
    titles = ("dataset", "method", "track", "protocol", "domain", "backbone")
    header = (*titles, "k", "measured", "published", "delta")
    table = Table("published", "Measured beside published", note, header, tuple(rows), text_columns=len(titles))
    return table.without_constant_columns(2, 6)


def shift_table(study: Study, panel: Panel, k: int) -> Table:
    """Make methods x test sets at one k: first the mean over the shifted test sets, then each test set.

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
    """Return the numbers of one method: the means, then the accuracy on each test set."""
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
    """Return the means over the shifted test sets, each among its own classes: of the method, and of zero-shot."""
    partial = _partial_tests(panel, k)

    def own(row: Row) -> float | None:
        return row.accuracy_own_classes if row.test in partial else row.accuracy

    def zero_shot(row: Row) -> float | None:
        return row.accuracy_zero_shot_own_classes if row.test in partial else row.accuracy_zero_shot

    return panel.mean(method, k, own), panel.mean(method, k, zero_shot)


def _partial_tests(panel: Panel, k: int) -> frozenset[str]:
    """Return the test sets with fewer classes than the target."""
    return frozenset(row.test for row in panel.rows if row.accuracy_own_classes is not None and row.k in (0, k))


def _test_title(panel: Panel, test: str) -> str:
    """Return the name of the test set; with the target's name before it if the panel has several targets."""
    targets = {row.dataset for row in panel.rows}
    if len(targets) > 1:
        return test
    name = test.rpartition(" → ")[2]
    return f"{name} (target)" if name in targets else name


def base_to_new_table(study: Study, panel: Panel, k: int) -> Table | None:
    """Make methods x (base, new, harmonic mean, all) at one k, means over datasets; ``None`` on other tracks."""
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
