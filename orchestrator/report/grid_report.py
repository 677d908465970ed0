"""Reads the results that a plan found in a store, and writes the grid's report into the store."""

from pathlib import Path

from orchestrator.analysis.rows import PublishedOf, Row, SourceRow
from orchestrator.analysis.scores import check_scored
from orchestrator.artifacts.head import EqualClasses, Head, cut_off_sentence, equal_classes_of
from orchestrator.catalog import Catalog
from orchestrator.planning.plan import Plan
from orchestrator.report.analysis import GridResults
from orchestrator.report.paper.published import published_accuracy
from orchestrator.report.write import write_report
from orchestrator.store import CorruptArtifact, Store
from orchestrator.store.files import local_folder, upload_folder
from orchestrator.tracks import MetricName
from orchestrator.util.errors import UserError
from orchestrator.util.units import listed

SHOWN_DATASETS = 3


def read_grid_results(plan: Plan, store: Store) -> GridResults:
    """Return the results of a plan, arranged once for the report, the terminal and MLflow."""
    grid = plan.grid
    return GridResults(
        name=grid.name,
        title=grid.title,
        description=grid.description,
        results=plan.done,
        failures=plan.failed,
        planned=grid.cells,
        label_of=grid.label,
        published_of=published_of(plan.catalog),
        names_of=plan.catalog.published_names,
        sources=source_rows(plan, store),
        text_limits=text_limits(plan, store),
        read_predictions=store.read_predictions,
        smallest_difference=grid.smallest_difference,
        saves=grid.saves,
        metric=grid.metric,
        raced=plan.places,
    )


def read_finished_results(plan: Plan, store: Store) -> GridResults:
    """Return the results of a plan, for a command that runs no cell.

    Raises ``UserError`` if no cell is finished, or if no result has a score: an empty report must not replace an
    earlier one.
    """
    if not plan.done:
        name, what = plan.grid.given, f"no cell of the grid is finished in {store.url}, so there is nothing to report"
        hint = f"python -m orchestrator status {name} shows the progress; check --store and the grid file"
        raise UserError(what, where=name, hint=hint)
    results = read_grid_results(plan, store)
    check_scored(results.rows, results.metric, plan.grid.name)
    return results


def write_grid_report(grid: GridResults, store: Store, metric: MetricName | None = None) -> Path:
    """Write a grid's report into its store, and return the path of the page on this machine.

    A remote store gets a copy of the report. With ``metric``, the folder's name has the metric too.
    """
    folder = f"reports/{grid.name}-{metric}" if metric else f"reports/{grid.name}"
    inspected = {path.stem for path in local_folder(store.files, "reports/cells").glob("*.html")}
    page = write_report(grid, local_folder(store.files, folder), inspected=inspected)
    upload_folder(store.files, folder, last=page.name)
    return page


def report_location(page: Path, store: Store) -> str:
    """Return where a report's page is: its path and, if the store is remote, also its address in the store."""
    if store.files.is_local:
        return str(page)
    return f"{page}, and in the store {store.files.location(f'reports/{page.parent.name}/{page.name}')}"


def published_of(catalog: Catalog) -> PublishedOf:
    """Return a function that gives the accuracy that the paper prints for a row, or ``None`` if it prints none."""

    def lookup(row: Row) -> float | None:
        backbone, dataset = catalog.published_names(row.backbone, row.evaluated_on)
        return published_accuracy(row.track, backbone, row.domain, row.k, row.method_name, dataset)

    return lookup


def text_limits(plan: Plan, store: Store) -> tuple[EqualClasses, ...]:
    """Return, for each backbone and dataset of the grid, the classes whose text vectors are equal, if there are any."""
    found = (equal_classes_of(store, head) for head in _heads(plan))
    return tuple(equal for equal in found if equal is not None)


def _heads(plan: Plan) -> list[Head]:
    """Return the zero-shot head of each backbone and dataset of the grid."""
    refs = {
        (cell.backbone.name, dataset.name): (cell.backbone, dataset)
        for cell in plan.grid.cells
        for dataset in (cell.dataset, *cell.evaluate_on)
    }
    return [Head(*both, plan.catalog.backbone(name).input_size) for (name, _), both in refs.items()]


def remarks_on_data(plan: Plan, store: Store) -> list[str]:
    """Return remarks on the data of a grid, at most two.

    The first names datasets whose numbers of classes or images differ from the catalog, for example because an archive
    was unpacked only in part. Own and drawn datasets are left out. The second names texts too long for a text tower.
    """
    found, heads = dict[str, str](), _heads(plan)
    for spec in sorted({head.images for head in heads}, key=lambda spec: spec.address):
        entry = plan.catalog.dataset(spec.dataset.name)
        try:
            built = None if entry.is_own or entry.is_bundled else store.artifact(spec.address, spec.identity)
        except CorruptArtifact:
            continue
        if built is not None and built.meta["differs"]:
            found[entry.name] = f"{entry.name} ({'; '.join(built.meta['differs'])})"
    shown = listed([*found.values()], SHOWN_DATASETS, "; ")
    remarks = [f"datasets whose numbers of classes or images differ from the catalog: {shown}"] if found else []
    cut = [sentence for head in heads if (sentence := cut_off_sentence(store, head))]
    return remarks + ([listed(cut, SHOWN_DATASETS, "; ")] if cut else [])


def source_rows(plan: Plan, store: Store) -> list[SourceRow]:
    """Return the accuracy of every source model on its own task.

    Models that are not built or are damaged are left out, and so are adopted models, which are stored without accuracy.
    """
    models = {
        plan.sources[source]
        for cell in plan.cells
        for source in cell.sources
        if source in plan.sources  # the sources of a meta-learned start are datasets, not models
    }
    rows = []
    for model in sorted(models, key=lambda model: (model.backbone.name, model.ref.dataset)):
        try:
            artifact = store.artifact(model.address)
        except CorruptArtifact:
            continue  # a run builds the damaged model again when a cell needs it
        if artifact is not None and "accuracy_fine_tuned" in artifact.meta:
            domain = plan.catalog.dataset(model.ref.dataset).domain
            numbers = (artifact.meta[name] for name in ("accuracy_zero_shot", "accuracy_fine_tuned", "test_images"))
            rows.append(SourceRow(model.backbone.name, domain, model.ref.dataset, *numbers))
    return rows
