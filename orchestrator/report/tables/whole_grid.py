"""Tables about the whole grid: costs, source models, classes with too few images, and cells without a result."""

from collections.abc import Iterator
from operator import attrgetter
from statistics import median

from orchestrator.report.analysis import GridResults
from orchestrator.report.styles import DASH
from orchestrator.report.tables.common import method_entry
from orchestrator.report.tables.table import Entry, Table, difference, number, with_dagger
from orchestrator.tracks import stored_track
from orchestrator.util.grouping import grouped
from orchestrator.util.identity import slug
from orchestrator.util.units import listed


def costs_tables(grid: GridResults) -> Iterator[Table]:
    """Make a table for each track: what a cell costs, by method, backbone and protocol."""
    for track in grid.tracks:
        rows = [row for row in grid.rows if row.track == track]
        ks = sorted({row.k for row in rows} - {0})
        cells = {row.cell_id: row for row in rows}.values()
        groups = grouped(cells, lambda row: (row.backbone, row.protocol, row.method))
        protocols = list(dict.fromkeys(row.protocol for row in rows))
        order = sorted(groups, key=lambda group: (group[0], protocols.index(group[1]), grid.methods.index(group[2])))
        lines = []
        for backbone, protocol, method in order:
            own = groups[backbone, protocol, method]
            parameters = sorted({row.trainable_parameters for row in own})
            smallest_and_largest = dict.fromkeys((f"{parameters[0]:,}", f"{parameters[-1]:,}"))
            fits = [[row.fit_seconds for row in own if row.k in (0, k)] for k in ks or [0]]
            line = (
                method_entry(grid, method),
                Entry(backbone),
                Entry(protocol),
                Entry(f" {DASH} ".join(smallest_and_largest), value=float(parameters[-1])),
                *(number(median(fit) if fit else None) for fit in fits),
                number(median(row.eval_seconds for row in own)),
                number(max(row.peak_memory_mib for row in own), ",.0f"),
                number(len(own), "d"),
            )
            lines.append(with_dagger(line, any(row.selects_on_test for row in own)))
        fit_titles = [f"fit s, k = {k}" for k in ks] or ["fit s"]
        note = (
            "Trainable parameters (fewest and most over datasets), median seconds to adapt and to score, largest peak "
            "memory in MiB. Seconds are wall-clock on the machines that ran the cells and include waiting for others."
        )
        title = f"Costs per cell, {stored_track(track).title}"
        header = ("method", "backbone", "protocol", "trained", *fit_titles, "score s", "peak MiB", "cells")
        table = Table(f"costs_{slug(track)}", title, note, header, tuple(lines), text_columns=3)
        yield table.without_constant_columns(2, 3)


def sources_table(grid: GridResults) -> Table | None:
    """Make a table of every source model's accuracy on its own task; ``None`` if there are no source models.

    If fine-tuning has not helped some model, a column of remarks says so.
    """
    if not grid.sources:
        return None
    some_without_gain = any(source.gain <= 0 for source in grid.sources)
    rows = []
    for source in grid.sources:
        texts = (source.dataset, source.domain, source.backbone, "no gain" if source.gain <= 0 else "")
        numbers = (number(source.zero_shot_accuracy), number(source.fine_tuned_accuracy), difference(source.gain))
        rows.append((*map(Entry, texts), *numbers, number(source.total, "d")))
    note = (
        "Accuracy in per cent of each source model on its own task's test split, and of the backbone before "
        "fine-tuning."
    )
    if some_without_gain:
        note += (
            " Without gain: fine-tuning has not helped on the model's own task; sources: {min_gain: 0.1} leaves such "
            "models out."
        )
    titles = ("dataset", "domain", "backbone", "remark")
    header = (*titles, "zero-shot", "fine-tuned", "gain", "test images")
    table = Table("sources", "Source models on their own task", note, header, tuple(rows), text_columns=len(titles))
    return table if some_without_gain else table.without_columns([3])


def short_classes_table(grid: GridResults) -> Table | None:
    """Make a table of the datasets that have classes with fewer than k training images; ``None`` without any."""
    ordered = sorted(grid.rows, key=attrgetter("target_classes"))  # a group of classes has fewer than the target
    groups = {(row.dataset, row.domain, row.k, row.protocol): row for row in ordered if row.short_classes}
    if not groups:
        return None
    rows = []
    for (dataset, domain, k, protocol), row in sorted(groups.items()):
        counts = (number(count, "d") for count in (k, row.short_classes, row.target_classes or None))
        rows.append(with_dagger((Entry(dataset), Entry(domain), Entry(protocol), *counts), row.selects_on_test))
    note = "Classes with fewer than k training images. The protocol takes all images that such a class has."
    header = ("dataset", "domain", "protocol", "k", "short classes", "classes")
    return Table("short_classes", "Classes with fewer than k images", note, header, tuple(rows), text_columns=3)


def missing_table(grid: GridResults) -> Table | None:
    """Make a table with the counts of finished, failed and missing cells of each method and k.

    Methods and k without unfinished cells are left out. ``None`` if every cell is finished.
    """
    if not (grid.missing or grid.failures):
        return None
    needed = {cell.id for cell in grid.without_result}
    groups = grouped(
        grid.planned, lambda c: (grid.labels[c.id], c.track, c.protocol.name, c.domain, c.backbone.name, c.shots)
    )
    rows = []
    for (*texts, k), cells in groups.items():
        if unfinished := [cell for cell in cells if cell.id in needed]:
            failures = sum(cell.id in grid.failed for cell in unfinished)
            finished = sum(cell.id in grid.finished for cell in cells)
            counts = (k, len(cells), finished, failures, len(unfinished) - failures)
            names = [f"{c.dataset.name} seed {c.seed}" if c.shots or c.seed else c.dataset.name for c in unfinished]
            place = (method_entry(grid, texts[0]), *map(Entry, texts[1:]))
            rows.append((*place, Entry(listed(names, 8)), *(number(count, "d") for count in counts)))
    note = "Only what is not complete is listed; every cell that lacks a result is in tables/cells_without_result.csv."
    titles = ("method", "track", "protocol", "domain", "backbone", "which")
    header = (*titles, "k", "planned", "finished", "failed", "missing")
    table = Table("missing", "Cells without a result", note, header, tuple(rows), text_columns=len(titles))
    return table.without_constant_columns(2, 3)


def left_out_table(grid: GridResults) -> Table | None:
    """Make a table of the methods that a race has stopped, with the reasons; ``None`` if no cell was left out."""
    if not grid.left_out:
        return None
    left_out = {cell.id for cell in grid.left_out}
    rows = []
    for place in grid.raced:
        for m, method in enumerate(place.methods):
            look = place.race.measured(m)
            cells = {cell.id for (position, _, _), cell in place.cells.items() if position == m} & left_out
            if look is None or not cells:
                continue
            rival, p = place.decisions.get(method, ("", None))
            reason = f"worse than {grid.display_names.get(rival, rival)}" if rival else "the race is over"
            texts = map(Entry, (*place.place, reason))
            counts = (number(count, "d") for count in (place.k, look.datasets, look.seeds, len(cells)))
            rows.append((method_entry(grid, method), *texts, *counts, number(p, ".2g")))
    note = (
        "A race stops a method that can no longer be the best. It stops all methods at once when nothing is left to "
        "decide. p is the p-value of the test that excluded the method. Means of stopped methods are over fewer "
        "datasets, and their order is not known."
    )
    titles = ("method", "track", "protocol", "backbone", "domain", "why")
    header = (*titles, "k", "datasets", "seeds", "cells left out", "p")
    table = Table("left_out", "What the race left out", note, header, tuple(rows), text_columns=len(titles))
    return table.without_constant_columns(2, 3)


def cells_without_result_table(grid: GridResults) -> Table | None:
    """Make a table of every planned cell without a result and of every failure; ``None`` without any."""
    if not (grid.missing or grid.failures):
        return None
    missing = {cell.id: ("missing", "", "") for cell in grid.without_result}
    failed = {failure.id: ("failed", failure.error, failure.log) for failure in grid.failures}
    rows = [tuple(map(Entry, (id_, *texts))) for id_, texts in {**missing, **failed}.items()]
    note = "Failed cells with their error and log. A missing cell was not started, or did not finish."
    header = ("cell", "state", "error", "log")
    return Table("cells_without_result", "Cells without a result", note, header, tuple(rows), text_columns=4)
