"""Writes results to MLflow: one run per cell, and runs that summarise them.

The results in the store are authoritative. :meth:`Tracker.sync` makes an experiment equal to them: it adds missing
runs, and removes duplicates and the half-written runs of a killed driver. So a run that is written twice does no harm.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.core.events import OnProgress
from orchestrator.store.results import Result
from orchestrator.tracking.client import PROXY_SCHEME, attach_folder, follow_artifacts, open_client, open_experiment
from orchestrator.tracking.location import POSTGRES_DRIVER, TrackingLocation
from orchestrator.tracking.runs import CONTENT, KEY, Describe, Labels, TrackedRun, cell_run
from orchestrator.tracking.summaries import summary_runs

PAGE = 1000


@dataclass(frozen=True)
class SyncReport:
    """The numbers of runs that a sync has added, kept and removed."""

    added: int
    kept: int
    removed: int


class Tracker:
    """One experiment in one tracking store. Database and experiment are created if they are missing.

    Several processes may open the same experiment at once.

    Args:
        experiment: the grid's name.
        adapter_of: ``adapter_of(cell_id)`` is the folder of a cell's adapter, which is attached to the cell's run.
    """

    def __init__(
        self,
        location: TrackingLocation,
        experiment: str,
        adapter_of: Callable[[str], Path | None] = lambda cell_id: None,
    ) -> None:
        self._client, self._experiment = open_client(location.uri), experiment
        self._destination, self._adapter_of = location.artifacts, adapter_of
        root = f"{PROXY_SCHEME}:/grids" if location.uri.startswith(POSTGRES_DRIVER) else location.artifacts
        self.experiment_id = open_experiment(self._client, experiment, root)
        if location.database is not None and root is not None:
            follow_artifacts(location.database, experiment, root)

    def log_result(self, result: Result, labels: Labels) -> None:
        """Write the run of one finished cell."""
        self._write(cell_run(result, labels, self._experiment))

    def existing(
        self, on_progress: OnProgress = lambda done, total: None, *, where: str = ""
    ) -> dict[str, list[tuple[str, str]]]:
        """Return the id and the fingerprint of each run in MLflow, by key. An unfinished run has an empty fingerprint.

        Runs that this project did not write are left out. ``where``: a filter in MLflow's language.
        """
        found: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for count, run in enumerate(self._search(where)):
            if count % PAGE == 0:
                on_progress(count, 0)
            tags = run.data.tags
            if KEY in tags:
                content = tags.get(CONTENT, "") if run.info.status == "FINISHED" else ""
                found[tags[KEY]].append((run.info.run_id, content))
        return dict(found)

    def sync(
        self,
        results: Sequence[Result],
        describe: Describe,
        verdicts: Sequence[VerdictSeries] = (),
        report: Path | None = None,
        *,
        verify: bool = False,
        on_progress: OnProgress = lambda done, total: None,
    ) -> SyncReport:
        """Make the runs of the experiment equal to ``results``. If nothing has changed, this takes one search.

        Args:
            results, describe, verdicts, report: see :func:`~orchestrator.tracking.summaries.summary_runs`.
            verify: whether to compare every run. If not, the run of the whole grid tells whether anything has changed:
                it is written last, and has a fingerprint of all other runs.
            on_progress: called with the number of runs that are done, and their total. While the runs in MLflow are
                listed, the total is 0.
        """
        wanted = [cell_run(result, describe(result), self._experiment) for result in results]
        wanted += summary_runs(results, describe, self._experiment, report, verdicts)
        if wanted:
            digest = hashlib.sha256("".join(run.content for run in wanted[:-1]).encode())
            wanted[-1] = last = replace(wanted[-1], inputs=digest.hexdigest())
            tracked = {} if verify else self.existing(where=f"tags.{KEY} = '{last.key}'")
            if [content for _, content in tracked.get(last.key, ())] == [last.content]:
                return SyncReport(0, len(wanted), 0)
        existing = self.existing(on_progress)
        added = kept = removed = 0
        for count, run in enumerate(wanted):
            on_progress(count, len(wanted))
            found = existing.pop(run.key, [])
            good = [run_id for run_id, content in found if content == run.content][:1]
            removed += self._delete([run_id for run_id, _ in found if run_id not in good])
            kept += len(good)
            if not good:
                self._write(run)
                added += 1
        removed += self._delete([run_id for runs in existing.values() for run_id, _ in runs])
        return SyncReport(added, kept, removed)

    def _write(self, run: TrackedRun) -> None:
        """Create, fill and finish a run. Its status is ``RUNNING`` until it is finished, so it counts as incomplete."""
        from mlflow.entities import Metric, Param

        tags = {KEY: run.key, "kind": run.kind, CONTENT: run.content, **run.tags}
        created = self._client.create_run(self.experiment_id, start_time=run.start, tags=tags, run_name=run.name)
        run_id = created.info.run_id
        # MLflow's comparison draws metrics against time by default. Here a step counts as a second, and the last step
        # is at the end of the run. So a curve against time has the same shape as against steps.
        last = max((step for _, _, step in run.metrics), default=0)
        metrics = [Metric(name, value, run.end - 1000 * (last - step), step) for name, value, step in run.metrics]
        params = [Param(name, value) for name, value in run.params.items()]
        self._client.log_batch(run_id, metrics=metrics, params=params)
        if run.folder is not None:
            attach_folder(self._client, created.info, run.folder, "report", self._destination)
        if run.kind == "cell" and (adapter := self._adapter_of(run.key)) is not None:
            attach_folder(self._client, created.info, adapter, "adapter", self._destination)
        self._client.set_terminated(run_id, "FINISHED", end_time=run.end)

    def _delete(self, run_ids: Sequence[str]) -> int:
        for run_id in run_ids:
            self._client.delete_run(run_id)
        return len(run_ids)

    def _search(self, where: str) -> Iterator[Any]:
        page: Any = None
        while page is None or page.token:
            token = page.token if page is not None else None
            page = self._client.search_runs([self.experiment_id], where, max_results=PAGE, page_token=token)
            yield from page
