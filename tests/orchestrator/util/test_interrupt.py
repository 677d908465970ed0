"""Ctrl-C in two steps, tested in separate processes."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import IO

import pytest

from orchestrator.execution.process import delay_interrupt
from orchestrator.util.interrupt import EXIT_CODE, SIGNALS, command_line, raise_if_interrupted, two_step_interrupt
from tests.helpers.waiting import TIMEOUT

STOPS_SLOWLY = """
import os, sys, time
from orchestrator.execution.process import delay_interrupt
from orchestrator.util.interrupt import two_step_interrupt
sys.argv = ["/x/orchestrator/__main__.py", "grid", "demo", "--store", "two words"]
def wait():
    while True:
        time.sleep(0.05)
try:
    with two_step_interrupt(lambda: os.write(1, b"stopping\\n")):
        try:
            print("at work", flush=True)
            wait()
        finally:
            {cleaning}
            print("cleaned up", flush=True)
except KeyboardInterrupt:
    sys.exit(7)
"""
"""``os.write``, because a signal handler cannot print while the program prints. Short sleeps, because a signal that
comes just before a sleep does not end it."""
WAITS = "print('cleaning', flush=True); wait()"
ENDS_RAY = f"with delay_interrupt(): {WAITS}"
"""Code that delays the first Ctrl-C must not delay the second."""


@contextlib.contextmanager
def started(cleaning: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    command = [sys.executable, "-c", STOPS_SLOWLY.format(cleaning=cleaning)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "at work\n"
            yield process, process.stdout
        finally:
            process.kill()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_stops_in_good_order(number: signal.Signals) -> None:
    with started("pass") as (process, said):
        process.send_signal(number)
        assert said.read() == "stopping\ncleaned up\n"
        assert process.wait() == 7


def test_a_closed_terminal_does_not_end_a_run_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with two_step_interrupt(lambda: None), delay_interrupt():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_stops_in_good_order() -> None:
    """The shell and the system both send SIGHUP, and writing to the terminal is an error."""
    terminal, own = pty.openpty()
    command = [sys.executable, "-c", STOPS_SLOWLY.format(cleaning="os.kill(os.getpid(), 1)")]
    with subprocess.Popen(
        command, stdin=own, stdout=own, stderr=own, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        os.close(own)
        try:
            said = b""
            while not said.endswith(b"\n"):  # one read may return a part of a line
                said += os.read(terminal, 100)
            assert said == b"at work\r\n"
            os.close(terminal)
            assert process.wait(TIMEOUT) == 7
        finally:
            process.kill()


def test_a_closed_terminal_does_not_end_the_processes_of_ray() -> None:
    end_itself = ["sh", "-c", "kill -HUP $$; echo lives on"]
    with delay_interrupt():
        assert subprocess.run(end_itself, capture_output=True).stdout == b"lives on\n"
    assert subprocess.run(end_itself, capture_output=True).stdout == b""


@pytest.mark.parametrize("cleaning", [WAITS, ENDS_RAY])
def test_the_second_leaves_at_once(cleaning: str) -> None:
    with started(cleaning) as (process, said):
        process.send_signal(signal.SIGINT)
        assert [said.readline(), said.readline()] == ["stopping\n", "cleaning\n"]
        process.send_signal(signal.SIGINT)
        ended = "\nstopped immediately; to go on: python -m orchestrator grid demo --store 'two words'\n"
        assert said.read() == ended
        assert process.wait() == EXIT_CODE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_was_kept_for_later_still_goes_through_the_first_step(number: signal.Signals) -> None:
    heard: list[str] = []
    before = signal.getsignal(signal.SIGINT)

    def interrupted_while_ray_starts() -> None:
        with two_step_interrupt(lambda: heard.append("stopping")), delay_interrupt():
            signal.raise_signal(number)
            heard.append("started")

    with pytest.raises(KeyboardInterrupt):
        interrupted_while_ray_starts()
    assert heard == ["started", "stopping"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_native_code_loses_is_raised_again() -> None:
    """A grid once said that it was stopping and ran to its end: Ctrl-C came while a Cython module was imported."""

    class Native:
        def __del__(self) -> None:  # Python ignores an exception that is raised here
            signal.raise_signal(signal.SIGINT)

    done: list[str] = []

    def interrupted() -> None:
        with two_step_interrupt(lambda: done.append("stopping")):
            Native()
            done.append("went on")
            if len(done) > 2:
                raise_if_interrupted()
                done.append("not reached")

    for expected in (["stopping", "went on"], ["stopping", "went on"] * 2):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert done == expected
    raise_if_interrupted()  # nothing is left of it


def test_the_exit_of_rays_own_handler_becomes_the_first_step() -> None:
    """Earlier, SIGTERM during the start of Ray ended the command with code 15, without a word on how to continue."""
    heard: list[str] = []

    def terminated_while_ray_starts() -> None:
        with two_step_interrupt(lambda: heard.append("stopping")), delay_interrupt():
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        terminated_while_ray_starts()
    assert heard == ["stopping"]
    with pytest.raises(SystemExit), delay_interrupt():
        sys.exit(3)


def test_the_command_line_is_told_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/orchestrator", "grid", "demo", "--set", "bolt.alphas=[1, 2]"])
    assert command_line() == "orchestrator grid demo --set 'bolt.alphas=[1, 2]'"
