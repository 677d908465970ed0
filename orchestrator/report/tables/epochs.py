"""The ``meta`` track: accuracy on the targets' test splits after every epoch of adaptation."""

from __future__ import annotations

from orchestrator.report.analysis.epochs import Curves, epoch_mean, longest
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import dataset_count, expected_seeds, panel_slug, seeds_words
from orchestrator.report.styles import Styles
from orchestrator.report.tables.comparison import method_entry
from orchestrator.report.tables.table import Table, flagged, marked_columns, measured

_SHOWN = (1, 2, 5, 10, 20)


def epochs_table(panel: Panel, curves: Curves, k: int, styles: Styles) -> Table | None:
    """Methods x epochs 1, 2, 5, 10, 20 and the last; ``None`` where no cell has a curve."""
    last = longest(panel, curves)
    if not last:
        return None
    epochs = sorted({epoch for epoch in _SHOWN if epoch <= last} | {last})
    rows = [
        [
            method_entry(method, styles),
            *(
                measured(epoch_mean(panel, curves, method, k, epoch), seeds=expected_seeds(panel, method))
                for epoch in epochs
            ),
        ]
        for method in panel.methods
    ]
    note = (
        f"Accuracy in per cent on the targets' test splits, mean over {dataset_count(panel, 'target')} per seed, "
        f"then mean ± sample standard deviation over seeds ({seeds_words(panel)}). A dash: the method has no epochs, "
        "fewer of them, or no seed with every target."
    )
    return Table(
        name=f"epochs_{panel_slug(panel)}_k{k}",
        title=f"Accuracy after each epoch{f' at k = {k}' if k else ''}, {panel.title}",
        note=note,
        header=("method", *(f"epoch {epoch}" for epoch in epochs)),
        rows=tuple(flagged(row, panel.selects_on_test) for row in marked_columns(rows)),
    )
