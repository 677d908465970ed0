"""An installable package that adds a method and a domain."""

from pathlib import Path

CATALOG = Path(__file__).with_name("catalog.yaml")
"""The catalog file that the entry point names."""
