"""MLflow as a view of the results: one run per cell, written by one process.

The results in the store are the truth. :meth:`Tracker.sync` makes an experiment say what they say - adding what is
missing, removing what a killed driver left half-written, and doubles - so nothing here has to be exactly-once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.store.results import Result
from orchestrator.tracking.client import PROXIED, as_url, attach, open_client
from orchestrator.tracking.database import DRIVER, with_driver
from orchestrator.tracking.experiment import open_experiment, set_tags
from orchestrator.tracking.runs import CONTENT, KEY, Describe, Labels, TrackedRun, cell_run, summing_up
from orchestrator.tracking.summaries import summary_runs
from orchestrator.tracking.ui import VIEW_TAG, VIEWS, compare_link, experiment_tags, view_link

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PAGE = 1000

COMPARED_PANELS = 4
"""Of a grid with more of them, no comparison is linked to: such an address is long, and one may choose the runs."""


def _unheard(done: int, total: int) -> None:
    """Nobody wants to know how far it is."""


@dataclass(frozen=True)
class SyncReport:
    """What a sync did, in runs."""

    added: int
    kept: int
    removed: int


@dataclass(frozen=True)
class Existing:
    """A tracked run as it is."""

    run_id: str
    status: str
    content: str


class Tracker:
    """One experiment on one tracking store.

    Args:
        uri: ``sqlite:///...``, ``postgresql://...`` or the URL of a tracking server.
        artifact_root: folder or URL for artifacts; ``None`` leaves it to the store. Of a PostgreSQL it is where the
            tracking server beside it keeps them: runs then say that they are to be had from the server.
        experiment: the experiment's name; the grid's.
        adapter_of: the folder of a finished cell's adapter, by the cell's id; attached to its run.

    Creates database and experiment where they are missing; several processes may do so at once.
    """

    def __init__(
        self,
        uri: str,
        artifact_root: str | None,
        experiment: str,
        adapter_of: Callable[[str], Path | None] = lambda cell_id: None,
    ) -> None:
        self._client = open_client(uri)
        self.experiment = experiment
        self._adapter_of = adapter_of
        self._destination = artifact_root
        shared = with_driver(uri).startswith(DRIVER)
        root = None if artifact_root is None else f"{PROXIED}:/grids" if shared else as_url(artifact_root)
        self.experiment_id = open_experiment(self._client, experiment, root, experiment_tags())

    def log_result(self, result: Result, labels: Labels) -> None:
        """Write the run of one finished cell."""
        self._write(cell_run(result, labels, self.experiment))

    def existing(self, on_progress: Callable[[int, int], None] = _unheard) -> dict[str, list[Existing]]:
        """Every run of the experiment by what it is about; runs somebody else made are left out."""
        found: dict[str, list[Existing]] = defaultdict(list)
        for count, run in enumerate(self._search("")):
            if count % PAGE == 0:
                on_progress(count, 0)
            tags = run.data.tags
            if KEY in tags:
                found[tags[KEY]].append(Existing(run.info.run_id, run.info.status, tags.get(CONTENT, "")))
        return dict(found)

    def sync(
        self,
        results: Sequence[Result],
        describe: Describe,
        *,
        report: Path | None = None,
        verify: bool = False,
        on_progress: Callable[[int, int], None] = _unheard,
    ) -> SyncReport:
        """Make the experiment say exactly what ``results`` say: idempotent, and cheap when it does already.

        Args:
            results: every finished cell of the grid.
            describe: how cells are labelled.
            report: folder to attach to the grid's own run.
            verify: look at every run even where the grid's run, which is written last and sums up the contents of
                all others, says that nothing has changed.
            on_progress: hears how many runs have been looked at, of 0, and then made sure of, of how many.
        """
        wanted = [cell_run(result, describe(result), self.experiment) for result in results]
        wanted += summary_runs(results, describe, self.experiment, report)
        if wanted:
            wanted[-1] = summing_up(wanted[-1], wanted[:-1])
            if not verify and self._says(wanted[-1]):
                return SyncReport(0, len(wanted), 0)
        domains = sorted({result.cell.domain for result in results})
        set_tags(self._client, self.experiment_id, experiment_tags(domains))
        existing = self.existing(on_progress)
        added = kept = removed = 0
        for count, run in enumerate(wanted):
            on_progress(count, len(wanted))
            there = existing.pop(run.key, [])
            good = [old for old in there if old.status == "FINISHED" and old.content == run.content][:1]
            removed += self._delete(old for old in there if old not in good)
            kept += len(good)
            if not good:
                self._write(run)
                added += 1
        removed += self._delete(old for runs in existing.values() for old in runs)
        return SyncReport(added, kept, removed)

    def remove(self) -> None:
        """Move the experiment to MLflow's bin, from where opening it brings it back."""
        self._client.delete_experiment(self.experiment_id)

    def _says(self, run: TrackedRun) -> bool:
        """Whether exactly this run is there, finished."""
        there = list(self._search(f"tags.{KEY} = '{run.key}'"))
        return [(old.info.status, old.data.tags.get(CONTENT)) for old in there] == [("FINISHED", run.content)]

    def _write(self, run: TrackedRun) -> None:
        """Create, fill and finish a run, in few calls; until the last it is ``RUNNING``, hence a leftover."""
        from mlflow.entities import Metric, Param

        tags = {KEY: run.key, "kind": run.kind, CONTENT: run.content, **run.tags}
        created = self._client.create_run(self.experiment_id, start_time=run.start, tags=tags, run_name=run.name)
        run_id = created.info.run_id
        # A second a step, the last at the run's end: charts over relative time, MLflow's default when runs are
        # compared, then show steps.
        last = max((step for _, _, step in run.metrics), default=0)
        metrics = [Metric(name, value, run.end - 1000 * (last - step), step) for name, value, step in run.metrics]
        params = [Param(name, value) for name, value in run.params.items()]
        self._client.log_batch(run_id, metrics=metrics, params=params)
        if run.folder is not None:
            attach(self._client, created.info, run.folder, "report", self._destination)
        if run.kind == "cell" and (adapter := self._adapter_of(run.key)) is not None:
            attach(self._client, created.info, adapter, "adapter", self._destination)
        self._client.set_terminated(run_id, "FINISHED", end_time=run.end)

    def _delete(self, runs: Iterable[Existing]) -> int:
        ids = [run.run_id for run in runs]
        for run_id in ids:
            self._client.delete_run(run_id)
        return len(ids)

    def _search(self, filter_string: str) -> Iterator[Any]:
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self.experiment_id], filter_string=filter_string, max_results=PAGE, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return


def ui_links(uri: str, experiment: str | None, base: str) -> dict[str, str]:
    """What there is to see and where, ``base`` being the address of the server of that tracking store.

    The ready-made views of an experiment, one of the curves for each domain where there are several, and, of the
    few panels of one grid, MLflow's comparison of all methods. Without an experiment, or where it is not tracked yet,
    the list of experiments.
    """
    client = open_client(uri)
    found = client.get_experiment_by_name(experiment) if experiment else None
    if found is None:
        return {"experiments": f"{base}/#/experiments"}
    links = {what: view_link(base, found.experiment_id, view) for view, what in VIEWS.items()}
    prefix = f"{VIEW_TAG}curves-"
    domains = sorted(tag.removeprefix(prefix) for tag in found.tags if tag.startswith(prefix))
    if len(domains) > 1:
        links |= {
            f"accuracy against k in {domain}": view_link(base, found.experiment_id, f"curves-{domain}")
            for domain in domains
        }
    panels = _panels(client, found.experiment_id)
    if len(panels) <= COMPARED_PANELS:
        links |= {
            f"{len(runs)} methods compared, {panel}": compare_link(base, found.experiment_id, runs)
            for panel, runs in panels.items()
            if len(runs) > 1
        }
    return links


def _panels(client: MlflowClient, experiment_id: str) -> dict[str, list[str]]:
    """The runs of the methods' curves by what they are drawn together for, the best method first."""
    curves = client.search_runs(
        [experiment_id], "tags.kind = 'curve'", max_results=PAGE, order_by=["metrics.accuracy_by_shots DESC"]
    )
    panels: dict[str, list[str]] = defaultdict(list)
    for run in curves:
        params = run.data.params
        panels[" ".join(params[name] for name in ("track", "protocol", "backbone", "domain"))].append(run.info.run_id)
    return dict(sorted(panels.items()))
