"""A method and a domain that come in a package of their own."""

from pathlib import Path

CATALOG = Path(__file__).with_name("catalog.yaml")
"""The catalog file that the entry point names."""
