"""Class names and prompts of a dataset, imported from open_clip where the catalog names one of its lists."""

from __future__ import annotations

import importlib
from functools import cache

from orchestrator.catalog.dataset_entry import DatasetEntry
from orchestrator.catalog.validation import OPEN_CLIP
from orchestrator.util.errors import UserError


def prompt_templates(entry: DatasetEntry) -> tuple[str, ...]:
    """The prompt templates of a dataset, with ``{}`` for the class name."""
    return _open_clip_list(entry.prompts) if isinstance(entry.prompts, str) else entry.prompts


def class_names_of(entry: DatasetEntry) -> tuple[str, ...] | dict[str, str] | None:
    """The class names that the catalog gives a dataset: in label order, by folder, or ``None`` for the data's own."""
    return _open_clip_list(entry.class_names) if isinstance(entry.class_names, str) else entry.class_names


@cache
def _open_clip_list(name: str) -> tuple[str, ...]:
    attribute = name.removeprefix(OPEN_CLIP)
    found = getattr(importlib.import_module("open_clip"), attribute, None)
    if found is None:
        raise UserError(f"open_clip has no list {attribute!r}", where=name)
    return tuple(item if isinstance(item, str) else item("{}") for item in found)
