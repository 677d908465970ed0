"""Names of files are UTF-8, whatever the locale says."""

from __future__ import annotations

import os
import sys


def start_in_utf8_mode() -> None:
    """Start this process again in Python's UTF-8 mode if names of files would be ASCII.

    That is so in the locale ``C`` where ``PYTHONUTF8=0`` keeps Python from choosing UTF-8 by itself. A name with an
    umlaut could then be neither printed nor written into a file.
    """
    if sys.getfilesystemencoding() == "ascii" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
