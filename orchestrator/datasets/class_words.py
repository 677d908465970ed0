"""Words for classes, which prompts are made of: from the catalog entry, or from the names in the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bolt.image_folders import class_word
from orchestrator.catalog import DatasetEntry, class_names_of
from orchestrator.util.errors import UserError


def class_words_of(entry: DatasetEntry, from_data: Sequence[str]) -> tuple[str, ...]:
    """Return the class words for prompts, in label order.

    The catalog entry names classes by a list in label order, or by a mapping from the names in the data. Without
    either, the names in the data are used, with underscores as spaces and with the entry's ``renamed`` applied. Copies
    of a dataset spell its names differently, so a key that is not exactly there matches the only name with its letters
    and digits.

    Raises ``UserError`` when the numbers of names differ, a mapping lacks a class, or two classes get the same words.
    """
    given = class_names_of(entry)
    where = f"dataset {entry.name}, field class_names"
    if isinstance(given, tuple):
        if len(given) != len(from_data):
            raise UserError(f"{len(given)} names for {len(from_data)} classes found", where=where)
        return given
    renamed = entry.renamed if given is None else given
    plain = Counter(map(_plain, renamed))
    by_plain = {_plain(name): word for name, word in renamed.items() if plain[_plain(name)] == 1}
    words = [renamed.get(name) or by_plain.get(_plain(name), "") for name in from_data]
    if given is None:
        words = [word or name.replace("_", " ").strip() for name, word in zip(from_data, words, strict=True)]
    elif missing := [name for name, word in zip(from_data, words, strict=True) if not word]:
        raise UserError(f"no words for the class folder(s) {', '.join(missing[:5])}", where=where)
    check_distinct(words, from_data, where)
    return tuple(words)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def check_distinct(words: Sequence[str], names: Sequence[str], where: str = "") -> None:
    """Raise ``UserError`` if the words of two classes differ at most in case. ``names``: the classes in the data."""
    first: dict[str, str] = {}
    for word, name in zip(words, names, strict=True):
        if (other := first.setdefault(word.casefold(), name)) is not name:
            raise UserError(
                f"the classes {other!r} and {name!r} would both be called {word!r}",
                where=where,
                hint="their prompts would be equal; give them different words, or merge them",
            )


def class_words(names: Sequence[str]) -> dict[str, str]:
    """Map class names in the data to words for prompts, made by :func:`class_word`.

    Raises ``UserError`` naming two classes that would get the same words.
    """
    words = [class_word(name) for name in names]
    check_distinct(words, names)
    return dict(zip(names, words, strict=True))
