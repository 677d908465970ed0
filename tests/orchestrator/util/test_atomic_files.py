"""A file is replaced in one step, or stays as it was."""

from pathlib import Path

import pytest

from orchestrator.util.atomic_files import replacing


def test_a_file_is_replaced_at_the_end_of_the_block_and_a_link_stays_one(tmp_path: Path) -> None:
    path, link = tmp_path / "new" / "file.txt", tmp_path / "link.txt"
    path.parent.mkdir()
    with replacing(path) as temporary:
        temporary.write_text("one")
        assert not path.exists()
    link.symlink_to(path)
    with replacing(link) as temporary:
        temporary.write_text("two")
    assert path.read_text() == "two"
    assert link.is_symlink()
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]


def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_a_folder_that_is_a_file_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), replacing(tmp_path / "file" / "below.txt") as temporary:
        temporary.write_text("x")
