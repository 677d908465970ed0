"""The output of the ``data`` commands: tables of datasets, findings, and the next commands to type."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.catalog import DatasetEntry, dataset_folder, excluded_file, own_splits, partial_folder
from orchestrator.datasets.adding import Added
from orchestrator.datasets.fetching import FETCHERS
from orchestrator.datasets.state import State, bytes_in, other_data, read_record, state_of
from orchestrator.datasets.verify import Verified, copy_notes
from orchestrator.util.console import plain_table
from orchestrator.util.units import first_lines, human_bytes, listed, pluralize

SHOWN_CLASSES = 12
HEADINGS = ("dataset", "domain", "classes", "images", "state", "size", "access", "licence")
STYLES = {"drawn": "", "there": "green", "other data": "yellow", "partial": "yellow", "missing": "dim"}


def datasets_view(
    entries: Sequence[DatasetEntry], data_root: Path | None, catalogs: Sequence[Path]
) -> tuple[RenderableType, str]:
    """Return a table of the entries; and lines that count the datasets on this machine and say how to get the others.

    ``catalogs``: the user's catalog files. The commands in the lines pass them as options.
    """
    states = {entry.name: state_of(entry, data_root) for entry in entries}
    rows: list[tuple[str | Text, ...]] = []
    for entry in entries:
        state, images = states[entry.name], f"{entry.sizes.train + entry.sizes.test:,}"
        shown, access = Text(state, STYLES[state]), "" if state == "drawn" else entry.access
        size = _size(entry, data_root, state)
        rows.append((entry.name, entry.domain, str(entry.classes), images, shown, size, access, entry.licence))
    table = plain_table(*HEADINGS, right=("classes", "images", "size"), no_wrap=True)
    for index, column in enumerate(table.columns[:-1]):  # only the licence may be cut
        column.min_width = max(len(row[index]) for row in [HEADINGS, *rows])
    for row in rows:
        table.add_row(*row)
    missing = [entry for entry in entries if states[entry.name] in ("partial", "missing")]
    others = [entry for entry in entries if states[entry.name] == "other data"]
    where = f", looked for in {data_root}" if data_root else "; no data root is given (--data-root or BOLT_DATA)"
    lines = ["", f"{len(entries) - len(missing) - len(others)} of {len(entries)} are on this machine{where}"]
    if fetch := [entry.name for entry in missing if entry.route.kind in FETCHERS]:
        options = [*catalog_options(catalogs), "--data-root", data_root or "PATH"]
        lines += ["fetch the missing ones:", f"  {command(['data', 'prepare', *fetch, *options])}"]
    if by_hand := [entry.name for entry in missing if entry.name not in fetch]:
        lines.append(f"to fetch by hand (`data prepare NAME` says how): {', '.join(by_hand)}")
    lines += [str(other_data(entry, data_root)) for entry in others]
    lines += own_splits(entries, data_root)
    return table, "\n".join(lines)


def _size(entry: DatasetEntry, data_root: Path | None, state: State) -> str:
    """Return the size on disk of a complete or partial dataset, or else the size of its download."""
    if state == "there" and data_root is not None:
        record = read_record(entry, data_root)
        return human_bytes(record.bytes if record else bytes_in(dataset_folder(entry, data_root)))
    fetch = human_bytes(entry.download_bytes) if entry.download_bytes else ""
    if state == "partial" and data_root is not None:
        begun = human_bytes(bytes_in(partial_folder(entry, data_root)))
        return f"{begun} of {fetch}" if fetch else f"{begun} so far"
    return fetch


def verified_view(found: Verified) -> RenderableType:
    """Return the output of ``data verify``: counts, differences from the catalog, copies, and unreadable images."""
    raw, train = found.raw, found.raw.class_sizes("train")
    spread = f"{min(train)} to {max(train)}"
    if len(train) <= SHOWN_CLASSES:
        spread = ", ".join(f"{word} {count}" for word, count in zip(raw.class_names, train, strict=True))
    head = f"{found.entry.name}: {len(train)} classes, {len(raw.train):,} training and {len(raw.test):,} test images"
    if raw.validation:
        head += f", and {len(raw.validation):,} for validation"
    lines = [Text(head, "bold"), Text(f"  images per class in train: {spread}")]
    if found.excluded:
        lines.append(Text(f"  excluded before: {found.excluded}"))
    if not found.entry.is_own:
        lines += [Text(f"  differs from the catalog: {line}", "yellow") for line in found.differs]
    lines += [Text(f"  {note}", "yellow") for note in copy_notes(found.copies, found.decoded, found.turned)]
    if found.rotated and not raw.train.reading.upright:
        lines.append(Text(f"  images whose EXIF rotation is not applied: {found.rotated}"))
    lines += [Text(f"  {remark}", "yellow") for remark in found.remarks]
    if found.broken:
        lines.append(Text(f"  images that cannot be decoded: {len(found.broken)}", "red"))
        lines += [Text(f"    {broken.origin}: {broken.reason}") for broken in found.broken]
    else:
        lines.append(Text("  every image can be decoded"))
    return Group(*lines)


def added_lines(added: Added, catalog: Path, grid: Path, options: Sequence[str | Path] = ()) -> list[str]:
    """Return the lines that ``data add`` prints: the dataset, remarks about it, and the next commands to type.

    Args:
        catalog: the file with the entry.
        grid: the file that names the cells to measure.
        options: options that the next commands need because ``bolt.yaml`` does not have them.
    """
    entry = added.entry
    assert isinstance(entry.class_names, dict)
    words = [f"{name} -> {word!r}" if name != word else repr(word) for name, word in entry.class_names.items()]
    sizes = f"{pluralize(entry.sizes.train, 'training image')}, {pluralize(entry.sizes.test, 'test image')}"
    excluded = excluded_file(entry.name, added.data_root)
    return [
        f"{entry.name}: {entry.classes} classes, {sizes} ({entry.splits.recipe.replace('_', ' ')})",
        f"  classes: {listed(words, SHOWN_CLASSES)}",
        f"  prompts: {_prompts_in_words(entry)}",
        *(f"  note: {first_lines(note)}" for note in added.notes),
        *([f"  excluded images: {excluded}"] if excluded.is_file() else []),
        f"written to {catalog}; {grid} says what to measure on the dataset",
        "next:",
        f"  {command(['plan', grid, *options])}",
        f"  {command(['grid', grid, *options])}",
        f"for a CLIP that was trained on photographs, write backbones: [vit-b-32] into {grid}",
        "the weights of vit-b-32 are fetched once",
    ]


def _prompts_in_words(entry: DatasetEntry) -> str:
    if isinstance(entry.prompts, dict):
        fewest, most = (end(entry.prompts.values(), key=len) for end in (min, max))
        count = f"{len(fewest)} to " * (len(most) > len(fewest)) + pluralize(len(most), "sentence")
        return f"{count} for each class, such as {most[0]!r}"
    return entry.prompts if isinstance(entry.prompts, str) else ", ".join(entry.prompts)


def catalog_options(catalogs: Iterable[Path]) -> list[str | Path]:
    """Return the ``--catalog`` options for a user's catalog files."""
    return [word for path in catalogs for word in ("--catalog", path)]


def command(words: Sequence[str | Path]) -> str:
    """Return a command line, quoted for a shell."""
    return shlex.join(["python", "-m", "orchestrator", *map(str, words)])
