"""Reads the catalog when it is imported, because a process keeps what it has read: forked commands find it there."""

from __future__ import annotations

from orchestrator.catalog import load_catalog

load_catalog()
