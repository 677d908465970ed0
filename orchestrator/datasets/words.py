"""The words that stand for a dataset's classes in prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.catalog import DatasetEntry, class_words
from orchestrator.errors import UserError


def class_words_of(entry: DatasetEntry, from_data: Sequence[str]) -> tuple[str, ...]:
    """The words that go into prompts, in label order.

    The catalog may name classes as a list in label order or as a mapping from folder name; otherwise the data's own
    names serve, underscores read as spaces.
    """
    given = class_words(entry)
    if given is None:
        return tuple(name.replace("_", " ") for name in from_data)
    where = f"dataset {entry.name}, field class_names"
    if isinstance(given, Mapping):
        missing = [name for name in from_data if name not in given]
        if missing:
            raise UserError(f"no words for the class folder(s) {', '.join(missing[:5])}", where=where)
        return tuple(given[name] for name in from_data)
    if len(given) != len(from_data):
        raise UserError(f"{len(given)} names for {len(from_data)} classes found", where=where)
    return tuple(given)
