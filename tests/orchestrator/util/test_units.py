"""Sizes and durations as people write and read them."""

import pytest

from orchestrator.util.errors import UserError
from orchestrator.util.units import human_duration, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("200GB", 200 * 10**9), ("1.5 TiB", 3 * 2**39), ("500m", 500 * 10**6), ("7", 7), ("8KiB", 8192), ("3b", 3)],
)
def test_sizes_as_people_write_them(text: str, count: int) -> None:
    assert parse_bytes(text, "--disk-budget") == count


@pytest.mark.parametrize("text", ["", "many", "-3GB", "0", "3XB", "GB", "1e9", "3 GB GB"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a size"):
        parse_bytes(text, "--disk-budget")


def test_a_message_shows_the_beginning_of_what_is_long() -> None:
    with pytest.raises(UserError) as refused:
        parse_bytes("x" * 4000, "--disk-budget")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "unknown"),
        (0.2, "0 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (3570.0, "1 h 00 min"),
        (11100.0, "3 h 05 min"),
        (187200.0, "2 d 4 h"),
        (1.7e6, "19 d"),
        (1.7e9, "54 years"),
    ],
)
def test_durations_in_words(seconds: float | None, words: str) -> None:
    assert human_duration(seconds) == words
