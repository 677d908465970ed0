"""Importing this module reads the catalog. A process keeps the catalog it has read, so its forks need not read it."""

from orchestrator.catalog import load_catalog

load_catalog()
