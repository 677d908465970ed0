"""The engine: everything that touches a disk, a network or a process."""

__version__ = "0.1.0"
