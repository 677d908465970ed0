"""MLflow as a view of the results: one run per cell, written by one process.

The results in the store are the truth. :meth:`Tracker.sync` makes an experiment say what they say - adding what is
missing, removing what a killed driver left half-written, and doubles - so nothing here has to be exactly-once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import queue
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from orchestrator.events import one_line
from orchestrator.results import Result
from orchestrator.tracking.runs import CONTENT, KEY, Describe, Labels, TrackedRun, cell_run, summing_up
from orchestrator.tracking.summaries import summary_runs
from orchestrator.tracking.ui import HOST, VIEW_TAG, VIEWS, compare_link, experiment_tags, view_link

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PAGE = 1000
PAUSE_SECONDS = 60.0
"""After a run could not be written, the writer leaves the tracking store alone for so long; ``sync`` brings the
rest over."""

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # an unreachable server costs seconds, not minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


COMPARED_PANELS = 4
"""Of a grid with more of them, no comparison is linked to: such an address is long, and one may choose the runs."""


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
        uri: ``sqlite:///...`` or the URL of a tracking server.
        artifact_root: folder or URL for artifacts; ``None`` leaves it to the store.
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
        self.experiment_id = _experiment_id(self._client, experiment, artifact_root)

    def log_result(self, result: Result, labels: Labels) -> None:
        """Write the run of one finished cell."""
        self._write(cell_run(result, labels, self.experiment))

    def existing(self) -> dict[str, list[Existing]]:
        """Every run of the experiment by what it is about; runs somebody else made are left out."""
        found: dict[str, list[Existing]] = defaultdict(list)
        for run in self._search(""):
            tags = run.data.tags
            if KEY in tags:
                found[tags[KEY]].append(Existing(run.info.run_id, run.info.status, tags.get(CONTENT, "")))
        return dict(found)

    def sync(
        self, results: Sequence[Result], describe: Describe, *, report: Path | None = None, verify: bool = False
    ) -> SyncReport:
        """Make the experiment say exactly what ``results`` say: idempotent, and cheap when it does already.

        Args:
            results: every finished cell of the grid.
            describe: how cells are labelled.
            report: folder to attach to the grid's own run.
            verify: look at every run even where the grid's run, which is written last and sums up the contents of
                all others, says that nothing has changed.
        """
        wanted = [cell_run(result, describe(result), self.experiment) for result in results]
        wanted += summary_runs(results, describe, self.experiment, report)
        if wanted:
            wanted[-1] = summing_up(wanted[-1], wanted[:-1])
            if not verify and self._says(wanted[-1]):
                return SyncReport(0, len(wanted), 0)
        self._set_tags(experiment_tags(sorted({result.cell.domain for result in results})))
        existing = self.existing()
        added = kept = removed = 0
        for run in wanted:
            there = existing.pop(run.key, [])
            good = [old for old in there if old.status == "FINISHED" and old.content == run.content][:1]
            removed += self._delete(old for old in there if old not in good)
            kept += len(good)
            if not good:
                self._write(run)
                added += 1
        removed += self._delete(old for runs in existing.values() for old in runs)
        return SyncReport(added, kept, removed)

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        there = self._client.get_experiment(self.experiment_id).tags
        for tag, value in tags.items():
            if there.get(tag) != value:
                self._client.set_experiment_tag(self.experiment_id, tag, value)

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
            self._client.log_artifacts(run_id, str(run.folder), "report")
        if run.kind == "cell" and (adapter := self._adapter_of(run.key)) is not None:
            self._attach(created.info, adapter, "adapter")
        self._client.set_terminated(run_id, "FINISHED", end_time=run.end)

    def _attach(self, info: Any, folder: Path, name: str) -> None:
        """Attach a small folder. On this machine's disk it is copied: MLflow's own way there takes 30 ms."""
        place = urlsplit(info.artifact_uri)
        if place.scheme == "file":
            shutil.copytree(folder, Path(url2pathname(place.path), name), copy_function=shutil.copyfile)
        else:
            self._client.log_artifacts(info.run_id, str(folder), name)

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


def links(uri: str, experiment: str | None, port: int) -> dict[str, str]:
    """What there is to see and where, once :func:`~orchestrator.tracking.ui.serve_ui` serves on ``port``.

    The ready-made views of an experiment, one of the curves for each domain where there are several, and, of the
    few panels of one grid, MLflow's comparison of all methods. Without an experiment, or where it is not tracked yet,
    the list of experiments.
    """
    base = f"http://{HOST}:{port}"
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


def open_client(uri: str) -> MlflowClient:
    """A client, with the database there.

    MLflow creates a missing SQLite database in many steps; two processes that do so at once, or one that is killed
    meanwhile, leave it broken for good. So it is made under another name, behind a lock, and moved into place whole.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):  # importing it has set them anew
        logging.getLogger(name).setLevel(logging.ERROR)
    database = uri.removeprefix("sqlite:///")
    if database != uri:
        _quicken_sqlite()
        with _locked(Path(f"{database}.lock")):
            _create_database(Path(database))
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)
    return client


def _create_database(path: Path) -> None:
    """Make an empty tracking database unless there is one. Raises ``OSError`` when MLflow cannot.

    In a process of its own, so that no connection to the passing name is left open in this one.
    """
    if path.exists():
        return
    for left in path.parent.glob(f".{path.name}.part*"):  # of a process that was killed; the lock is ours
        left.unlink()
    part = path.with_name(f".{path.name}.part")
    script = (
        "import sys; from mlflow.tracking import MlflowClient as C; C(sys.argv[1]).search_experiments(max_results=1)"
    )
    command = [sys.executable, "-c", script, f"sqlite:///{part}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(f"MLflow cannot create {path}: {one_line(done.stderr[-300:])}")
    os.replace(part, path)


@functools.cache
def _quicken_sqlite() -> None:
    """Have SQLite write ahead instead of syncing the disk several times for each of the six commits of a run.

    A power cut can then cost the last few runs, which ``sync`` brings back, and nothing else.
    """
    from sqlalchemy import Engine, event

    def prepare(connection: Any, record: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA journal_mode=WAL").close()
            connection.execute("PRAGMA synchronous=NORMAL").close()

    event.listen(Engine, "connect", prepare)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _experiment_id(client: MlflowClient, name: str, artifact_root: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        location = None if artifact_root is None else f"{_as_url(artifact_root)}/{name}"
        try:
            client.create_experiment(name, artifact_location=location)
        except MlflowException:
            if client.get_experiment_by_name(name) is None:
                raise
            # somebody else created it in between
        found = client.get_experiment_by_name(name)
        assert found is not None
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    for tag, value in experiment_tags().items():
        if found.tags.get(tag) != value:
            client.set_experiment_tag(found.experiment_id, tag, value)
    experiment_id: str = found.experiment_id
    return experiment_id


def _as_url(root: str) -> str:
    return root.rstrip("/") if "://" in root else Path(root).absolute().as_uri()


class TrackerThread:
    """Writes results to a tracker in the background, so that tracking never holds up the cells.

    A store that cannot be written to is no reason to stop a grid: the writer pauses, drops what it cannot write, and
    :meth:`close` says so once. ``sync`` brings it over later.

    Args:
        open_tracker: makes the tracker, in the thread; importing MLflow and creating a database take seconds.
        describe: how cells are labelled.
    """

    def __init__(self, open_tracker: Callable[[], Tracker], describe: Describe) -> None:
        self._open_tracker, self._describe = open_tracker, describe
        self._results: queue.Queue[Result | None] = queue.Queue()
        self._problem = ""
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def put(self, result: Result) -> None:
        """Have a finished cell tracked. Returns at once."""
        self._results.put(result)

    def close(self, timeout: float | None = None) -> str:
        """Write what is left, for at most ``timeout`` seconds; the problem there was, in one line, or ``""``."""
        self._results.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            return f"{self._results.qsize()} runs were not tracked in time"
        if self._dropped:
            return f"{self._dropped} runs could not be tracked: {self._problem}"
        return ""

    def __enter__(self) -> TrackerThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(timeout=None if kind is None else 10.0)

    def _work(self) -> None:
        tracker: Tracker | None = None
        not_before = 0.0
        while (result := self._results.get()) is not None:
            if time.monotonic() < not_before:
                self._dropped += 1
                continue
            try:
                tracker = tracker or self._open_tracker()
                tracker.log_result(result, self._describe(result))
            except Exception as error:
                self._problem = one_line(error)
                self._dropped += 1
                not_before = time.monotonic() + PAUSE_SECONDS
