"""What this machine grants this process."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """Processors this process may use; a container or a batch system can grant fewer than there are."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
