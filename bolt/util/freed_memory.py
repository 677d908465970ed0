"""Gives freed memory back to the system."""

import ctypes
from contextlib import suppress


def return_freed_memory() -> None:
    """Give the memory that this process has freed back to the system, if the C library is glibc.

    glibc keeps freed memory for later requests: 1.5 GiB after fine-tuning a ViT-B/32, 0.3 GiB after loading one.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
