"""The words for a dataset's classes in prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.catalog import DatasetEntry, class_names_of
from orchestrator.util.errors import UserError


def class_words_of(entry: DatasetEntry, from_data: Sequence[str]) -> tuple[str, ...]:
    """The class words for prompts, in label order.

    The catalog entry names classes by a list in label order, or by a mapping from the names in the data. Without
    either, the names in the data are used, with underscores as spaces and with the entry's ``renamed`` applied. Copies
    of a dataset spell its names differently, so a mapping's keys match regardless of case, spaces, underscores and
    hyphens.

    Raises ``UserError`` when the numbers of names differ, a mapping lacks a class, or two classes get the same words.
    """
    given = class_names_of(entry)
    where = f"dataset {entry.name}, field class_names"
    if given is None:
        renamed = _Spellings(entry.renamed)
        return _distinct([renamed.get(name) or name.replace("_", " ").strip() for name in from_data], from_data, where)
    if isinstance(given, Mapping):
        spellings = _Spellings(given)
        words = [spellings.get(name) for name in from_data]
        missing = [name for name, word in zip(from_data, words, strict=True) if word is None]
        if missing:
            raise UserError(f"no words for the class folder(s) {', '.join(missing[:5])}", where=where)
        return _distinct([word for word in words if word is not None], from_data, where)
    if len(given) != len(from_data):
        raise UserError(f"{len(given)} names for {len(from_data)} classes found", where=where)
    return tuple(given)


def _distinct(words: Sequence[str], from_data: Sequence[str], where: str) -> tuple[str, ...]:
    """``words``, if no two are equal without regard to case. Raises ``UserError`` otherwise."""
    first: dict[str, str] = {}
    for word, name in zip(words, from_data, strict=True):
        other = first.setdefault(word.casefold(), name)
        if other is not name:
            raise UserError(f"the classes {other!r} and {name!r} would both be called {word!r}", where=where,
                            hint="give them different words")  # fmt: skip
    return tuple(words)


class _Spellings:
    """A mapping from names to words: exact names first, then only their letters and digits."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words
        plain = [_plain(name) for name in words]
        self.by_plain = {key: words[name] for key, name in zip(plain, words, strict=True) if plain.count(key) == 1}

    def get(self, name: str) -> str | None:
        return self.words.get(name) or self.by_plain.get(_plain(name))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
