"""Prints the dataset table and notes of ``docs/datasets.md``: ``python -m tests.helpers.dataset_table``."""

from collections.abc import Iterable

from orchestrator.catalog.dataset_entry import DatasetEntry
from orchestrator.catalog.load import load_catalog

BENCHMARK = ("general", "general_extra", "remote_sensing", "imagenet")
"""The domains of the paper's datasets."""
HEADER = (
    "| key | classes | train | test | parts | from | access | licence |",
    "|---|---|---|---|---|---|---|---|",
)


def markdown_table(entries: Iterable[DatasetEntry]) -> str:
    return "\n".join([*HEADER, *map(_row, entries)])


def markdown_notes(entries: Iterable[DatasetEntry]) -> str:
    """Return one list item for each dataset that has a note."""
    return "\n".join(f"- **{entry.name}**: {entry.note}" for entry in entries if entry.note)


def _row(entry: DatasetEntry) -> str:
    origin = entry.route.origin.split(" (")[0].removeprefix("torchvision.datasets.") or "by hand"
    if origin.startswith("https://huggingface.co/datasets/") and entry.route.kind == "huggingface":
        origin = f"[{entry.route.repo}]({origin})"
    elif origin.startswith("https://"):
        origin = f"[{origin.split('/')[2]}]({origin})"
    elif entry.route.kind == "torchvision":
        origin = f"torchvision `{origin}`"
    cells = (
        f"`{entry.name}`", f"{entry.classes:,}", f"{entry.sizes.train:,}", f"{entry.sizes.test:,}",
        f"`{entry.splits.recipe}`", origin, entry.access, entry.licence,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _main() -> None:
    entries = [entry for entry in load_catalog().datasets.values() if entry.domain in BENCHMARK]
    print(markdown_table(entries), markdown_notes(entries), sep="\n\n")


if __name__ == "__main__":
    _main()
