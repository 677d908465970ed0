"""Makes Python use UTF-8 for file names, whatever the locale says."""

from __future__ import annotations

import os
import sys


def start_in_utf8_mode() -> None:
    """Restart this process in Python's UTF-8 mode if Python uses ASCII for file names.

    Python does so in the locale ``C`` if ``PYTHONUTF8=0`` is set. A name with an umlaut could then be neither printed
    nor written into a file.
    """
    if sys.getfilesystemencoding() == "ascii" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
