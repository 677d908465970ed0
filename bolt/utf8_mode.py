"""Names of files are UTF-8, whatever the locale says."""

from __future__ import annotations

import os
import sys


def start_in_utf8_mode() -> None:
    """Start this process again in Python's UTF-8 mode if its locale knows ASCII only, as ``C`` does in some containers.

    Without it, a name with an umlaut could be neither printed nor written into a file.
    """
    if sys.getfilesystemencoding() == "ascii" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
