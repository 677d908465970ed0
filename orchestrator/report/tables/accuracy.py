"""Tables of scores: by k, dataset, test set, group of classes and epoch, and beside the published accuracy."""

from collections.abc import Collection, Iterator

from orchestrator.analysis.rows import Row, test_name
from orchestrator.analysis.seed_means import summarize
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.styles import k_title
from orchestrator.report.tables.common import group_table, mean_entry, method_entry, score_entry, summary_entry
from orchestrator.report.tables.table import Entry, Table, difference, highlighted, measured, number, with_dagger
from orchestrator.tracks import stored_track
from orchestrator.tracks.base_to_new import BASE_CLASSES, NEW_CLASSES
from orchestrator.util.grouping import grouped
from orchestrator.util.identity import slug

_EPOCHS = (1, 2, 5, 10, 20)


def main_table(grid: GridResults, group: ComparisonGroup) -> Table:
    """Make the table of methods x k: mean over datasets, its deviation over seeds, and gain over zero-shot."""
    rows = [
        [method_entry(grid, method), *(mean_entry(group, method, k, raced=bool(grid.raced)) for k in group.ks)]
        for method in group.methods
    ]
    track = group.track
    noun = "dataset" if track.averages_target else "other dataset" if track.own_words else "shifted test set"
    score = group.mean_of
    note = (
        f"Mean {group.mean_text} over {group.dataset_count(noun)} per seed, then mean ± sample standard deviation "
        f"over seeds ({group.seeds_text}); below it the gain over zero-shot in points.{group.uneven_text}"
    )
    dash_note = "A dash: no seed has every dataset yet."
    if grid.raced:
        dash_note = (
            "A dash: not every dataset was measured, as after a race; the mean over the measured ones is in brackets."
        )
    title = f"{score[0].upper()}{score[1:]} by method and shots" if any(group.ks) else f"Mean {score} by method"
    header = ("method", *(k_title(k, group.metric.title) for k in group.ks))
    return group_table(group, "main", title, note, header, rows, best=True, warned=grid, dash_note=dash_note)


def dataset_table(grid: GridResults, group: ComparisonGroup, k: int) -> Table:
    """Make the table of datasets x methods at one k. The last row is the mean over datasets."""
    rows = [
        (Entry(test), *highlighted([score_entry(group, method, k, test) for method in group.methods]))
        for test in group.tests(k)
    ]
    means = [
        summary_entry(group, method, group.mean(method, k), missing=f"({group.measured_tests(method, k)})")
        for method in group.methods
    ]
    group_mean = group.metric.group_mean(group.track)
    of = " of shifted" if group.track.scores_variants else f" of {group_mean.name}s" if group_mean else ""
    of = " of others" if group.track.own_words else of
    rows.append((Entry(f"mean{of}"), *highlighted(means)))
    note = f"{group.score_text}, mean ± sample standard deviation over seeds ({group.seeds_text})."
    header = ("dataset", *(grid.display_names[method] for method in group.methods))
    title, codes = f"{group.metric.heading} by dataset", ("dataset", *group.methods)
    return group_table(
        group, "datasets", title, note, header, rows, k=k, summary_rows=1, header_codes=codes, warned=grid
    )


def epochs_table(grid: GridResults, group: ComparisonGroup, k: int) -> Table | None:
    """Make the table of methods x epochs 1, 2, 5, 10, 20 and the last; ``None`` if no cell has epoch scores."""
    if not (last := group.last_epoch):
        return None
    epochs = sorted({epoch for epoch in _EPOCHS if epoch <= last} | {last})
    rows = []
    for method in group.methods:
        means = [group.epoch_mean(method, k, epoch) for epoch in epochs]
        rows.append([method_entry(grid, method), *(summary_entry(group, method, mean) for mean in means)])
    note = (
        f"Accuracy in per cent on the targets' test splits, mean over {group.dataset_count('target')} per seed, "
        f"then mean ± sample standard deviation over seeds ({group.seeds_text})."
    )
    dash_note = "A dash: the method has no epochs, fewer of them, or no seed with every target."
    header = ("method", *(f"epoch {epoch}" for epoch in epochs))
    title = "Accuracy after each epoch"
    return group_table(group, "epochs", title, note, header, rows, k=k, best=True, dash_note=dash_note)


def explorer_tables(grid: GridResults) -> Iterator[Table]:
    """Make a long table for each track, to filter and sort: a row for every dataset, backbone, protocol and k."""
    titles = ("dataset", "domain", "backbone", "protocol", "k")
    for track in grid.tracks:
        groups = [group for group in grid.groups if group.place.track == track and not group.ablations]
        methods = [method for method in grid.methods if any(method in group.methods for group in groups)]
        methods.sort(key=lambda method: not any(method in group.fixed for group in groups))
        metric = groups[0].score_text if groups else "In per cent"
        yield Table(
            name=f"explorer_{slug(track)}",
            title=f"Every dataset, {stored_track(track).title}",
            note=f"{metric}, mean ± sample standard deviation over seeds; point at a number to see n.",
            header=(*titles, *(grid.display_names[method] for method in methods)),
            header_codes=(*titles, *methods),
            rows=tuple(
                _explorer_row(group, k, test, methods) for group in groups for k in group.ks for test in group.tests(k)
            ),
            text_columns=4,
        ).without_constant_columns(1, 5)


def _explorer_row(group: ComparisonGroup, k: int, test: str, methods: list[str]) -> tuple[Entry, ...]:
    """Make the row of one dataset at one k: dataset, domain, backbone, protocol, k, and the score of every method."""
    scores = [score_entry(group, method, k, test) for method in methods]
    texts = map(Entry, (test, group.place.domain, group.place.backbone, group.place.protocol))
    return with_dagger((*texts, number(k, "d"), *highlighted(scores)), group.selects_on_test)


def published_table(grid: GridResults) -> Table | None:
    """Make a table with a row for each measured accuracy that the paper prints too; ``None`` if there is none."""
    printed = (row for row in grid.rows if row.published is not None)
    groups = grouped(printed, lambda r: (r.test, r.method, r.track, r.protocol, r.domain, r.backbone, r.k))
    if not groups:
        return None
    rows = []
    for (*texts, k), own in groups.items():
        published = summarize([row.published for row in own if row.published is not None]).mean
        accuracy = summarize([row.accuracy for row in own])
        numbers = (number(k, "d"), measured(accuracy), number(published), difference(accuracy.mean - published))
        test, method, *others = map(str, texts)
        names = (Entry(test), method_entry(grid, method), *map(Entry, others))
        rows.append(with_dagger((*names, *numbers), any(row.selects_on_test for row in own)))
    note = "Measured (mean ± sample standard deviation over seeds) beside the published accuracy, in per cent."
    titles = ("dataset", "method", "track", "protocol", "domain", "backbone")
    header = (*titles, "k", "measured", "published", "delta")
    table = Table("published", "Measured beside published", note, header, tuple(rows), text_columns=len(titles))
    return table.without_constant_columns(2, 6)


def shift_table(grid: GridResults, group: ComparisonGroup, k: int) -> Table | None:
    """Make a table of methods x test sets at one k: first the mean over the shifted test sets, then each test set.

    A shifted test set has images of another kind for the target's task. A test set with fewer classes than the target
    gets two columns: accuracy among all classes, and among the classes of the test set. ``None`` on a track without
    shifted test sets.
    """
    if not group.track.scores_variants or group.track.own_words:
        return None
    tests, partial = group.tests(k), _partial_tests(group, k)
    header = ["method", "mean of shifted", *(["mean, own classes"] if partial else [])]
    for test in tests:
        name = _test_title(group, test)
        header += [name, f"{name}, own classes"] if test in partial else [name]
    rows = [[method_entry(grid, method), *_shift_entries(group, k, method, partial)] for method in group.methods]
    averaged = len(group.tests(k, averaged=True))
    note = (
        f"{group.score_text}, mean ± sample standard deviation over seeds ({group.seeds_text}). The "
        f"mean over the {averaged} shifted test sets, for each seed, leaves out the target itself. It is followed by "
        "its gain over zero-shot in points."
    )
    if partial:
        note += (
            " Own classes: predictions are limited to the classes of the test set. The mean of them also includes "
            "the test sets that have every class."
        )
    title = f"{group.metric.heading} under distribution shift"
    return group_table(group, "shift", title, note, header, rows, k=k, best=True, warned=grid)


def _shift_entries(group: ComparisonGroup, k: int, method: str, partial: Collection[str]) -> list[Entry]:
    """Return one method's entries in the table: the means, then the accuracy on each test set.

    ``partial``: the test sets that also have a column in which predictions are limited to their own classes.
    """

    def own(row: Row) -> float | None:
        return row.accuracy_own_classes if row.test in partial else row.accuracy

    def own_zero_shot(row: Row) -> float | None:
        return row.accuracy_zero_shot_own_classes if row.test in partial else row.accuracy_zero_shot

    gain = None if group.is_zero_shot(method) else group.mean(method, k, lambda row: row.score_gain)
    lead, missing = gain.mean if gain else None, f"({group.measured_tests(method, k)})"
    entries = [summary_entry(group, method, group.mean(method, k), gain=lead, missing=missing)]
    if partial:
        mean, zero_shot = group.mean(method, k, own), group.mean(method, k, own_zero_shot)
        lead = mean.mean - zero_shot.mean if gain and mean and zero_shot else None
        entries.append(summary_entry(group, method, mean, gain=lead))
    for test in group.tests(k):
        entries.append(score_entry(group, method, k, test))
        if test in partial:
            entries.append(summary_entry(group, method, group.mean(method, k, own, tests=[test])))
    return entries


def _partial_tests(group: ComparisonGroup, k: int) -> frozenset[str]:
    """Return the test sets with fewer classes than the target; none if the metric is not accuracy."""
    if group.rows[0].metric != "accuracy":
        return frozenset()
    return frozenset(row.test for row in group.rows if row.accuracy_own_classes is not None and row.k in (0, k))


def _test_title(group: ComparisonGroup, test: str) -> str:
    """Return the name of the test set, after the target's name if the group has several targets."""
    targets = {row.dataset for row in group.rows}
    if len(targets) > 1:
        return test
    name = test.rpartition(" → ")[2]
    return f"{name} (target)" if name in targets else name


def base_to_new_table(grid: GridResults, group: ComparisonGroup, k: int) -> Table | None:
    """Make the table of methods x (base, new, their mean, all) at one k. The numbers are means over datasets.

    Return ``None`` on a track without base classes.
    """
    if (mean := group.metric.group_mean(group.track)) is None:
        return None
    datasets = sorted({row.dataset for row in group.rows})
    class_groups = (BASE_CLASSES, NEW_CLASSES, mean.name)
    columns = [*([test_name(dataset, name) for dataset in datasets] for name in class_groups), datasets]
    rows = []
    for method in group.methods:
        entries = (summary_entry(group, method, group.mean(method, k, tests=tests)) for tests in columns)
        rows.append([method_entry(grid, method), *entries])
    note = (
        f"{group.score_text}, mean ± sample standard deviation over seeds ({group.seeds_text}), "
        "averaged over datasets. Methods are adapted to the base classes. Base and new: predictions among the classes "
        f"of that group alone. The {mean.name} of the two is taken for each dataset and seed. All: every test image, "
        "predicted among all classes."
    )
    header = ["method", "base", "new", mean.name, "all"]
    title = f"{group.metric.heading} on base and new classes"
    return group_table(group, "base_to_new", title, note, header, rows, k=k, best=True, warned=grid)
