"""Show the progress of a run, and write it to the status file.

A terminal gets a live view. Any other output gets plain lines without control characters: a line of progress from time
to time, and a line for every failure.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.live import Live

from orchestrator.progress.counter import ProgressCounter
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import State, StatusFile
from orchestrator.progress.view import LiveView
from orchestrator.util.console import print_line
from orchestrator.util.machine import Gpu, Memory, local_gpus, process_tree_memory

TICK_SECONDS = 0.5
"""Interval at which the display's thread looks for new lines to print."""
UPDATE_SECONDS = 3.0
"""Interval at which the load of memory and GPUs and the progress of builders are read, and the status file written."""
REFRESHES = 2
"""Refreshes of the live view per second."""
FIRST_LINES, LATER_LINES = 5.0, 60.0
"""Bounds of the seconds between plain lines. Within the bounds, the interval is a twentieth of the time so far."""
LAST_FAILURES = 5
"""Limit on the number of failures that are printed after the live view has closed. The latest ones are printed."""
STOPPING = "stopping: work under way is given up, finished work is kept; Ctrl-C again stops immediately"


class ProgressDisplay:
    """Shows the counts of a run on a console during a ``with`` block, and a summary when the block ends.

    ``status``: the status file for other shells, with the title of the run and the command that continues the run.
    """

    def __init__(self, counter: ProgressCounter, status: StatusFile, console: Console) -> None:
        self._counter, self._status, self._console = counter, status, console
        self._memory: Memory | None = None
        self._gpus: tuple[Gpu, ...] | None = None
        self._live: Live | None = None
        self._printed_line, self._printed_failures = "", 0
        self._stopping = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def stopping(self) -> None:
        """Show that the run is being stopped. May be called from a signal handler: it takes no lock."""
        self._stopping = True

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._view, console=self._console, refresh_per_second=REFRESHES, transient=True
            )
            self._live.start()
        self._status.write("running", self._snapshot())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end.set()
        self._thread.join()
        if self._live is not None:
            self._live.stop()
            self._printed_failures = max(0, len(self._counter.failures()) - LAST_FAILURES)  # the report lists them all
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        state: State = "stopped" if stopped else "failed" if kind else "ended"
        snapshot = self._snapshot()
        self._status.write(state, snapshot)
        self._print_failures()
        line = f"stopped: {snapshot.summary}; continue with: {self._status.command}"
        print_line(line if stopped else snapshot.summary, self._console)

    def _run(self) -> None:
        """Read memory, GPUs and builders' progress, write the status file and print plain lines, until the run ends."""
        start = time.monotonic()
        next_update = next_line = 0.0
        while not self._end.wait(TICK_SECONDS):
            now = time.monotonic()
            if now >= next_update:
                next_update = now + UPDATE_SECONDS
                with suppress(Exception):  # if the system does not report memory or GPUs, they are not shown
                    self._memory = process_tree_memory()
                    self._gpus = local_gpus() if self._gpus != () else ()  # if it finds none, it is not called again
                self._counter.read_build_progress()
                self._status.write("running", self._snapshot())
            if self._live is not None:
                continue
            self._print_failures()
            if self._stopping:
                self._print_new(STOPPING)
            elif now >= next_line:
                next_line = now + min(max(FIRST_LINES, (now - start) / 20), LATER_LINES)
                self._print_new(self._snapshot().line)

    def _snapshot(self) -> Snapshot:
        return replace(self._counter.snapshot(), memory=self._memory, gpus=self._gpus or ())

    def _view(self) -> RenderableType:
        title = f"{self._status.grid}: {self._status.title}"
        return LiveView(title, self._snapshot(), time.time(), STOPPING if self._stopping else "")

    def _print_failures(self) -> None:
        for failure in self._counter.failures(self._printed_failures):
            log = f" (log: {failure.log})" if failure.log else ""
            print_line(f"failed: {failure.name}: {failure.error}{log}", self._console)
            self._printed_failures += 1

    def _print_new(self, line: str) -> None:
        if line != self._printed_line:
            self._printed_line = line
            print_line(line, self._console)
