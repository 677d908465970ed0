"""Command-line options, times, ratios and tables for the benchmarks. This module is not a command."""

import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from statistics import median


def command(doc: str | None, **numbers: float) -> ArgumentParser:
    """Return a parser with an option for each number, whose value is the default."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="default: %(default)s")
    return parser


def seconds(work: Callable[[], object]) -> float:
    """Return how long the work takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def median_ratio(times: Iterable[float], of_rival: Iterable[float]) -> float:
    """Return the median over the rounds of the ratio of two times of the same round.

    Other work of the machine slows both times of a round alike, so their ratio changes little.
    """
    return median(own / rival for own, rival in zip(times, of_rival, strict=True))


def print_head(title: str, columns: Sequence[str]) -> None:
    """Print the head of a Markdown table."""
    print(f"\n| {title} | {' | '.join(columns)} |\n{'|---' * (1 + len(columns))}|", flush=True)


def print_row(name: object, columns: Iterable[str]) -> None:
    """Print a row of a Markdown table."""
    print(f"| {name} | {' | '.join(columns)} |", flush=True)
