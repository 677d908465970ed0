"""Words for classes, from which prompts are made. They come from the catalog entry, a table, or the data's names."""

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from bolt import class_words as bolt_words
from orchestrator.catalog import DatasetEntry, class_names_of
from orchestrator.datasets.text_tables import BY_SPACES, read_rows
from orchestrator.util.errors import UserError, explained

_HEADERS = frozenset({"folder", "class", "class_name", "name", "label", "id", "wnid"})
_ROW = "a row is folder,word[,sentence...]"
_PROMPT = r"[{}]|(?i:\b(photo|picture|image)s? of\b)"
_SENTENCE = re.compile(rf"{_PROMPT}|(\S+\s+){{3,}}(?!(sub)?spp?\.|etc\.)[^\WA-Z][\w-]*[.!]$")
"""Matches what stands in the column of the word by mistake: a prompt, or a sentence. It does not match a species with
its author, such as ``Pelargonium capitatum (L.) L'Hér.``"""

_ARTICLE = re.compile(r"^(an?|the)\s+(?=[^\W\d])", re.I)
_BULLET = re.compile(r"^(\d{1,2}[.)]|[-*•])\s+")
_WHOLE = re.compile(r"(\d{1,9})(\.0)?", re.ASCII)

_NO_SENTENCE = re.compile(r"(?!.*{})([\W\d_]*|n\d{8}|(#|(?=.*\d))[\da-f]{6}|\S*[:/]\S*|\S+\.[a-z]\w{2,3})", re.I)
"""Matches a field without letters, an id of WordNet, as ``imagenet_class_index.json`` has them, a colour such as
``#ff8000``, an address, and the name of a file. A field with ``{}`` is none of them."""


class Words(NamedTuple):
    """The words and sentences from which prompts are made.

    Attributes:
        words: name of a class in the data -> its words.
        sentences: name of a class in the data -> the sentences that a table gives for it.
        notes: remarks for the user.
    """

    words: dict[str, str]
    sentences: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]


def class_words_of(entry: DatasetEntry, from_data: Sequence[str]) -> tuple[str, ...]:
    """Return the class words for prompts, in label order.

    The entry's field ``class_names`` is a list in label order, or a mapping from the data's names to words. Without
    this field, the data's names are used: the field ``renamed`` replaces some of them, and the underscores of the
    others become spaces.

    Copies of a dataset may spell its names differently. Therefore a name that a mapping lacks takes the words of the
    key with the same letters and digits, if there is exactly one such key.

    Raises ``UserError`` when a list has another length than ``from_data`` or another order, a mapping lacks a class, or
    two classes get the same words.
    """
    given = class_names_of(entry)
    where = f"dataset {entry.name}, field class_names"
    if isinstance(given, tuple):
        if len(given) != len(from_data):
            raise UserError(f"{len(given)} names are given, but the data has {len(from_data)} classes", where=where)
        known = set(map(letters_of, from_data))
        for name, own in zip(given, from_data, strict=True):
            if letters_of(name) in known and letters_of(name) != letters_of(own):
                what = f"the list is not in label order: {name!r} is at the position of the class {own!r}"
                hint = f"give a mapping from the data's names to words instead: {{{own}: WORDS, ...}}"
                raise UserError(what, where=where, hint=hint)
        return given
    renamed = entry.renamed if given is None else given
    by_plain = _by_plain(renamed)
    words = [renamed.get(name) or renamed.get(by_plain.get(letters_of(name), ""), "") for name in from_data]
    if given is None:
        words = [word or name.replace("_", " ").strip() for name, word in zip(from_data, words, strict=True)]
    elif missing := [name for name, word in zip(from_data, words, strict=True) if not word]:
        raise UserError(f"no words for the class folder(s) {', '.join(missing[:5])}", where=where)
    with explained(ValueError, where=where):
        bolt_words.check_distinct(words, from_data)
    return tuple(words)


def class_words(names: Sequence[str], table: Path | None = None) -> Words:
    """Return the words of classes. They come from a table or, for classes that the table lacks, from the data's names.

    :func:`bolt.class_words.class_words` makes words of names. The table may have a header. Its rows are
    ``folder,word[,sentence...]``, and a folder may have several rows. A field without words is no sentence.

    Raises ``UserError`` for a table that cannot be read, that names no class, or whose numbers of classes start at
    another number than the data's. Also for a class with two words or with a sentence as its word, and for two classes
    with the same words or sentences.
    """
    rows, remarks = _read_table(table, names) if table else ([], [])
    if rows and rows[0][0].casefold() in _HEADERS and rows[0][0] not in names:
        rows = rows[1:]
    by_plain = _by_plain(names)
    given: dict[str, str] = {}
    sentences: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    foreign, numbers = [], list[str]()
    for folder, word, *texts in rows:
        name = folder if folder in sentences else by_plain.get(letters_of(folder))
        if name is None:
            foreign.append(folder)
            continue
        if _SENTENCE.search(word):
            what = f"the word of the class {name!r} is a sentence, {word!r}"
            raise UserError(what, where=f"--words {table}", hint=f"{_ROW}; the word may be empty: {name},,{word}")
        if word and given.setdefault(name, word) != word:
            what = f"the class {name!r} has two words, {given[name]!r} and {word!r}"
            raise UserError(what, where=f"--words {table}", hint="keep one word; further columns are sentences")
        sentences[name] += tuple(text for text in texts if not _NO_SENTENCE.fullmatch(text))
        numbers += filter(_NO_SENTENCE.fullmatch, texts)
    if all(map(_ARTICLE.match, given.values())):  # prompts have one
        given = {name: _ARTICLE.sub("", word) for name, word in given.items()}
    if table and len(foreign) == len(rows):
        hint = f"{_ROW}; the class folders are {', '.join(names[:5])}"
        raise UserError("the table names no class of the images", where=f"--words {table}", hint=hint)
    for first, second in pairwise(sorted((name for name in names if sentences[name]), key=sentences.__getitem__)):
        if sentences[first] == sentences[second] and "{}" not in "".join(sentences[first]):
            what = f"the classes {first!r} and {second!r} have the same sentences, such as {sentences[first][0]!r}"
            hint = "remove columns that say nothing about a class; in a sentence for all classes, write {} for the word"
            raise UserError(what, where=f"--words {table}", hint=hint)
    made = bolt_words.class_words([name for name in names if name not in given])
    counted = {int(found[1]) for folder, *_ in rows if made.words and (found := _WHOLE.fullmatch(folder))}
    shifted = [{int(name) + step for name in names} for step in (-1, 1)] if all(map(str.isdecimal, names)) else []
    if any(counted >= numbered for numbered in shifted):
        other = min(counted.difference(map(int, names)), default=0)
        what = f"the table has a class {other}, which the images lack, and no class {next(iter(made.words))}"
        raise UserError(what, where=f"--words {table}", hint="count the classes of both from the same number")
    notes = [*made.notes, *remarks]
    if table and (lacking := [name for name in made.words if not sentences[name]]):
        notes.append(f"classes without a word in {table.name}: {', '.join(lacking[:5])}")
    if table and foreign:
        notes.append(f"rows of {table.name} that name no class: {len(foreign)}, such as {foreign[0]!r}")
    if table and numbers:
        what = f"fields of {table.name} without words, which are no sentences"
        notes.append(f"{what}: {len(numbers)}, such as {numbers[0]!r}")
    words = {name: given.get(name) or made.words[name] for name in names}
    with explained(ValueError, where=f"--words {table}" if table else ""):
        bolt_words.check_distinct([*words.values()], names)
    return Words(words, sentences, tuple(notes))


def _read_table(path: Path, names: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return the rows of a table of words, and a remark if the table is not UTF-8.

    A row has at least two fields; empty sentences and the signs of a list before a sentence are left out.

    In a JSON file, a class has a word or, as CuPL writes them, a list of sentences.

    If spaces divide the columns, a row without quotes has a folder and a word, and the word may have spaces.

    A first column without a name is left out if the second column names classes, and the first one does not or has
    row numbers, as pandas writes them.
    """
    where, hint = f"--words {path}", "give a CSV file in UTF-8, or JSON"
    with explained(OSError, ValueError, csv.Error, what="the table cannot be read", where=where, hint=hint):
        lines, notes = (_rows_of_json(path), []) if path.suffix.lower() == ".json" else read_rows(path)
    known = {*map(letters_of, names)}
    first = [line[0] for line in lines] or ["folder"]
    extra = not first[0] and (all(map(str.isdecimal, first[1:])) or known.isdisjoint(map(letters_of, first)))
    if extra and any(letters_of(field) in known for line in lines for field in line[1:2]):
        lines = [rest for line in lines if (rest := line[1:])]
    if BY_SPACES in notes:
        lines = [line if " " in "".join(line[1:]) else [line[0], " ".join(line[1:])] for line in lines]
    rows = []
    for folder, *others in lines:
        others = [field.replace("\xa0", " ") for field in others]
        if any(not field.isprintable() for field in others):
            raise UserError(f"the row of {folder!r} holds characters that do not print", where=where)
        word = "".join(others[:1])
        found = re.fullmatch(r"(n\d{8})(?:\s+(.+))?", folder)  # space may follow the id, and synonyms the word
        if found and not (found[2] and letters_of(folder) in known):
            folder, others = found[1], [] if found[2] else others
            word = re.sub(r"^\d+ (?=\D)", "", (found[2] or word).split(",")[0])
        if folder:
            texts = [_BULLET.sub("", text) for text in others[1:] if text]
            rows.append([folder, word.replace("_", " ").strip(), *texts])
    return rows, [f"{path.name}: {note}" for note in notes if note.startswith("not UTF-8")]


def _rows_of_json(path: Path) -> list[list[str]]:
    try:
        given = TypeAdapter(dict[str, str | list[str]]).validate_json(path.read_bytes())
    except ValidationError:
        raise ValueError('JSON needs a word or sentences for each class, as {"c1": "cat", "c2": ["a {}."]}') from None
    return [[name, text] if isinstance(text, str) else [name, "", *text] for name, text in given.items()]


def _by_plain(names: Collection[str]) -> dict[str, str]:
    """Map the letters and digits of each name to the name. Names with the same letters and digits are left out."""
    plain = Counter(map(letters_of, names))
    return {letters_of(name): name for name in names if plain[letters_of(name)] == 1}


def letters_of(name: str) -> str:
    """Return the letters and digits of a name in lower case. Two spellings of one name give the same result.

    For a whole number, such as ``007`` or ``7.0``, return the number.
    """
    if number := _WHOLE.fullmatch(name):
        return str(int(number[1]))
    return "".join(letter for letter in unicodedata.normalize("NFC", name).casefold() if letter.isalnum())
