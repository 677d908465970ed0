"""The table of accuracy after chosen epochs of adaptation."""

from __future__ import annotations

from orchestrator.report.analysis.epochs import epoch_mean, last_epoch
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import dataset_count, seeds_text
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import at_k
from orchestrator.report.tables.common import method_entry
from orchestrator.report.tables.table import Table, highlighted_columns, measured, with_dagger

_EPOCHS = (1, 2, 5, 10, 20)


def epochs_table(study: Study, panel: Panel, k: int) -> Table | None:
    """Methods x epochs 1, 2, 5, 10, 20 and the last; ``None`` if no cell was scored after its epochs."""
    last = last_epoch(study, panel)
    if not last:
        return None
    epochs = sorted({epoch for epoch in _EPOCHS if epoch <= last} | {last})
    rows = []
    for method in panel.methods:
        means = [epoch_mean(study, panel, method, k, epoch) for epoch in epochs]
        seeds = panel.expected_seeds(method)
        rows.append([method_entry(study, method), *(measured(mean, seeds=seeds) for mean in means)])
    return Table(
        name=f"epochs_{panel.key.slug}_k{k}",
        title=f"Accuracy after each epoch{at_k(k)}, {panel.title}",
        note=f"Accuracy in per cent on the targets' test splits, mean over {dataset_count(panel, 'target')} per seed, "
        f"then mean ± sample standard deviation over seeds ({seeds_text(panel)}). A dash: the method has no epochs, "
        "fewer of them, or no seed with every target.",
        header=("method", *(f"epoch {epoch}" for epoch in epochs)),
        rows=tuple(with_dagger(row, panel.selects_on_test) for row in highlighted_columns(rows)),
    )
