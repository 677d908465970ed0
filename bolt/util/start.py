"""Prepares a process that runs a command, before it imports anything else."""

import io
import os
import sys
from pathlib import Path


def prepare_process() -> None:
    """Restart this process in UTF-8 mode if file names are not UTF-8, and import no modules from the working folder.

    In the locale ``C`` with ``PYTHONUTF8=0``, Python uses ASCII for file names. A name with an umlaut could then be
    neither printed nor written into a file. In a locale of Latin-1, each letter beyond ASCII would be read as two
    wrong letters, also in the words for a class. Texts are printed in UTF-8, too, whatever ``PYTHONIOENCODING`` says.

    ``python -m`` searches the working folder for modules first. A user's ``random.py`` there would hide Python's own
    module. The folder is still searched if it is the project's own folder.

    In a working folder that was deleted, print an error and exit: libraries cannot start there.
    """
    # A stream that the shell closed (`>&-`) is None. The next file to be opened would get the number of the stream.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    try:
        os.getcwd()
    except FileNotFoundError:
        print("error: the working folder was deleted\n  go to a folder that exists: cd", file=sys.stderr)
        sys.exit(2)
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    project = Path(__file__).parents[2]
    if not sys.flags.safe_path and not Path(sys.path[0]).samefile(project):
        del sys.path[0]
        os.environ["PYTHONSAFEPATH"] = "1"  # for the processes that this one starts
