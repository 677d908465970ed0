"""Entries that commands write into a catalog file."""

from pathlib import Path

import pytest

from orchestrator.catalog.validation import as_key
from orchestrator.catalog.yaml_files import dump_yaml, parse_yaml, read_mapping, write_entries
from orchestrator.util.errors import UserError


@pytest.mark.parametrize("text", ["- a list\n", "datasets:\n  a: {title: A}\n"])
def test_a_catalog_file_that_cannot_be_extended_is_unchanged(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError):
        write_entries(path, {"datasets": {"a": {"title": "1e-3"}}})
    assert path.read_text() == text


ENTRIES: dict[str, dict[str, object]] = {
    "words like numbers": {"title": "1e-3", "class_names": {"no": "off", "1:20": "0x1", "010": "1:30", "x": "a: b {}"}},
    "a line that was once broken inside a name": {
        "class_names": {
            f"a {kind} letter": f"a {kind} letter" for kind in ("capital", "small", "Greek", "gothic", "round")
        }
    },
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_is_read_as_it_was_written(tmp_path: Path, entry: dict[str, object]) -> None:
    path = tmp_path / "mine.yaml"
    for before in ({}, {"a": {"title": "A"}}):
        path.write_text("datasets: {a: {title: A}}\n" if before else "")  # a section on one line is extended
        write_entries(path, {"datasets": {"b": entry}})
        assert read_mapping(path) == {"datasets": {**before, "b": entry}}
    assert parse_yaml(dump_yaml(entry, None), "") == entry


@pytest.mark.parametrize("name", ["Übung Käfer", "U\u0308bung Ka\u0308fer"], ids=["one letter", "letter and accent"])
def test_a_key_made_from_a_name_keeps_letters_with_accents(name: str) -> None:
    """Regression: the key of ``Übung`` was ``bung``, and another one if the file system writes the accent apart."""
    assert as_key(name) == "ubung-kafer"
