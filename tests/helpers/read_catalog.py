"""Reads the catalog when it is imported, because a process keeps what it has read: forked commands find it there."""

from orchestrator.catalog import load_catalog

load_catalog()
