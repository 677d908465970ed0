"""Commands in processes of their own that need not import PyTorch and MLflow first.

The imports take longer than most commands. So one process makes them once, and every command is a fork of that process
(``multiprocessing``'s fork server). A command still has its own memory, environment, working directory and exit code.
But a library that reads the environment when it is imported has read the environment of the first command.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from tests.helpers.waiting import TIMEOUT, wait_for

IMPORTED = (
    "orchestrator.cli.session", "orchestrator.report.grid_report", "mlflow.tracking", "matplotlib.figure", "open_clip",
    "torchvision.transforms.v2", "tests.helpers.warm_process", "tests.helpers.read_catalog",
)  # fmt: skip
"""What a ``grid`` command imports; neither Ray nor anything else that starts a thread."""
COMMAND_LINE = "from orchestrator.__main__ import main; main()"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(IMPORTED))


def run_forked(
    words: Sequence[str],
    script: str = COMMAND_LINE,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> CompletedProcess[str]:
    """Run a script to its end, by default the command line, as ``python -c SCRIPT`` would with these arguments.

    Args:
        words: the arguments, without the program's name.
        script: Python code.
        folder: the working directory; by default that of this process.
        environment: all variables; by default those of this process.

    Raises ``TimeoutExpired`` after killing a command that did not end in time.
    """
    with tempfile.TemporaryDirectory(prefix="command-") as made:
        output, errors = Path(made, "out"), Path(made, "err")
        process = _start(words, script, folder, environment, output, errors)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutExpired(list(words), timeout, output.read_text(), errors.read_text())
        return CompletedProcess(list(words), process.exitcode, output.read_text(), errors.read_text())


def run_script(script: Path, words: Sequence[str] = ()) -> CompletedProcess[str]:
    """Run a Python file to its end, as ``python SCRIPT WORDS...`` would."""
    code = (
        f"import runpy, sys; sys.argv[0] = {str(script)!r}; sys.path[0] = {str(script.parent)!r}; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    return run_forked(words, code)


def kill_forked_when(
    words: Sequence[str], reached: Callable[[], bool], timeout: float = TIMEOUT, script: str = COMMAND_LINE
) -> bool:
    """Start a script and kill it (``kill -9``) when ``reached`` is true; return ``False`` if it ended before."""
    with forked(words, script) as process:
        wait_for(lambda: process.exitcode is not None or reached(), timeout)
        return process.exitcode is None


@contextmanager
def forked(words: Sequence[str], script: str = COMMAND_LINE, *, log: Path | None = None) -> Iterator[BaseProcess]:
    """Run a script during the ``with`` block, and kill it (``kill -9``) at the end of the block.

    ``log``: the file to which its output and its errors are appended; by default, nobody reads them.
    """
    with tempfile.TemporaryDirectory(prefix="command-") as made:
        output = log or Path(made, "out")
        process = _start(words, script, None, None, output, output)
        try:
            yield process
        finally:
            process.kill()
            process.join()


def _start(
    words: Sequence[str],
    script: str,
    folder: Path | None,
    environment: Mapping[str, str] | None,
    output: Path,
    errors: Path,
) -> BaseProcess:
    variables = dict(os.environ if environment is None else environment)
    process = _context.Process(
        target=_run, args=(["orchestrator", *words], script, folder or Path.cwd(), variables, output, errors)
    )
    process.start()
    return process


def _run(argv: list[str], script: str, folder: Path, variables: dict[str, str], output: Path, errors: Path) -> None:
    """Set the arguments, folder, environment and output of this process, the fork, and run the script."""
    for path, number in ((output, 1), (errors, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.argv = argv
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # it may differ in the new environment
    sys.path.insert(0, "")
    exec(script, {"__name__": "__main__"})
