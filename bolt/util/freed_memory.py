"""Returns freed memory to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def return_freed_memory() -> None:
    """Return memory that this process has freed to the system, where its C library is glibc.

    glibc keeps it, scattered among what is in use: 1.5 GiB after a fine-tuning of ViT-B/32, 0.3 after loading it.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
