"""What a process makes once and keeps, made when this module is imported: forked commands then find it there."""

from __future__ import annotations

from orchestrator.catalog import load_catalog
from orchestrator.report.figures import drawing

load_catalog()
drawing._families()
