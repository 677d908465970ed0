"""What the ``data`` commands print: tables of datasets, findings, and the next commands to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.catalog import DatasetEntry, dataset_folder, excluded_file, partial_folder
from orchestrator.datasets.adding import USUAL_SHOTS, Added
from orchestrator.datasets.fetching import FETCHERS
from orchestrator.datasets.state import State, bytes_in, read_record, state_of
from orchestrator.datasets.verify import Verified
from orchestrator.util.units import human_bytes

SHOWN_NAMES = 10
SHOWN_CLASSES = 12
HEADINGS = ("dataset", "domain", "classes", "images", "state", "size", "access", "licence")
STYLES = {"drawn": "", "there": "green", "partial": "yellow", "missing": "dim"}


def table_of(entries: Iterable[DatasetEntry], data_root: Path | None) -> RenderableType:
    """A table of the entries: domain, classes, images, state, size, access and licence."""
    rows = [_row(entry, data_root, state_of(entry, data_root)) for entry in entries]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(HEADINGS):
        widest = max(len(heading), *(len(str(row[index])) for row in rows)) if rows and heading != "licence" else None
        right = heading in ("classes", "images", "size")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True, min_width=widest)
    for row in rows:
        table.add_row(*row)
    return table


def _row(entry: DatasetEntry, data_root: Path | None, state: State) -> tuple[str | Text, ...]:
    images = f"{entry.sizes.train + entry.sizes.test:,}"
    access = "" if state == "drawn" else entry.access
    size = _size(entry, data_root, state)
    return (
        entry.name, entry.domain, str(entry.classes), images, Text(state, STYLES[state]), size, access, entry.licence,
    )  # fmt: skip


def _size(entry: DatasetEntry, data_root: Path | None, state: State) -> str:
    """The size on disk of a complete or partial dataset, else the size of its download."""
    if state == "there" and data_root is not None:
        record = read_record(entry, data_root)
        return human_bytes(record.bytes if record else bytes_in(dataset_folder(entry, data_root)))
    fetch = human_bytes(entry.download_bytes) if entry.download_bytes else ""
    if state == "partial" and data_root is not None:
        begun = human_bytes(bytes_in(partial_folder(entry, data_root)))
        return f"{begun} of {fetch}" if fetch else f"{begun} so far"
    return fetch


def fetch_lines(entries: Iterable[DatasetEntry], data_root: Path | None, catalogs: Sequence[Path]) -> str:
    """Lines with the number of datasets on this machine, and the command that fetches the missing ones."""
    states = {entry.name: (entry, state_of(entry, data_root)) for entry in entries}
    missing = [entry for entry, state in states.values() if state in ("partial", "missing")]
    lines = ["", f"{len(states) - len(missing)} of {len(states)} are on this machine"]
    lines[-1] += f", looked for in {data_root}" if data_root else "; no data root is given (--data-root or BOLT_DATA)"
    fetch = [entry.name for entry in missing if entry.route.kind in FETCHERS]
    if fetch:
        options = [*catalog_options(catalogs), "--data-root", data_root or "PATH"]
        lines += ["fetch the missing ones:", f"  {command(['data', 'prepare', *fetch, *options])}"]
    by_hand = [entry.name for entry in missing if entry.route.kind not in FETCHERS]
    if by_hand:
        lines.append(f"to fetch by hand (`data prepare NAME` says how): {', '.join(by_hand)}")
    return "\n".join(lines)


def verified_view(found: Verified) -> RenderableType:
    """Counts, differences from the catalog, unreadable images, and images that are in both parts."""
    counts = found.manifest.counts
    head = (
        f"{found.entry.name}: {found.manifest.classes} classes, {counts['train']:,} train and {counts['test']:,} test"
    )
    parts: list[RenderableType] = [Text(head, "bold"), Text(f"  images per class in train: {_spread(found)}")]
    if found.excluded:
        parts.append(Text(f"  excluded before: {found.excluded}"))
    parts += [Text(f"  differs from the catalog: {line}", "yellow") for line in found.differs]
    if found.duplicates:
        line = f"  test images with the same pixels as a training image: {len(found.duplicates)}"
        parts.append(Text(line, "yellow"))
        parts += [Text(f"    {test} = {train}") for test, train in found.duplicates[:SHOWN_NAMES]]
    if found.turned and not found.entry.exif_rotation:
        parts.append(Text(f"  images with an EXIF rotation, used without it: {found.turned}"))
    if found.broken:
        parts.append(Text(f"  images that cannot be decoded: {len(found.broken)}", "red"))
        parts += [Text(f"    {broken.origin}: {broken.reason}") for broken in found.broken]
    else:
        parts.append(Text("  every image can be decoded"))
    return Group(*parts)


def _spread(found: Verified) -> str:
    """Images per class: of every class if there are few, else the range."""
    train = [count for count, _ in found.per_class]
    if len(train) <= SHOWN_CLASSES:
        return ", ".join(f"{word} {count}" for word, count in zip(found.class_names, train, strict=True))
    return f"{min(train)} to {max(train)}"


def added_lines(added: Added, catalogs: Sequence[Path]) -> list[str]:
    """The added dataset, remarks about it, and the next commands to type."""
    entry = added.entry
    words = [f"{name} -> {word!r}" if name != word else repr(word) for name, word in added.words.items()]
    more = f", ... ({len(words)} in all)" if len(words) > SHOWN_CLASSES else ""
    lines = [
        f"{entry.name}: {entry.classes} classes, {entry.sizes.train} training images, {entry.sizes.test} test "
        f"images ({entry.splits.recipe.replace('_', ' ')})",
        f"  classes: {', '.join(words[:SHOWN_CLASSES])}{more}",
        f"  prompts: {', '.join(entry.prompts) if not isinstance(entry.prompts, str) else entry.prompts}",
        *(f"  note: {note}" for note in added.notes),
    ]
    if excluded_file(entry, added.data_root).is_file():
        lines.append(f"  excluded images: {excluded_file(entry, added.data_root)}")
    options: list[str | Path] = [*catalog_options(catalogs), "--data-root", added.data_root]
    options += ["--set", f"datasets=[{entry.name}]"]
    if entry.max_shots < max(USUAL_SHOTS):
        options += ["--set", f"shots=[{','.join(str(k) for k in USUAL_SHOTS if k <= entry.max_shots)}]"]
    return [
        *lines,
        f"written to {catalogs[-1]}",
        "next:",
        f"  {command(['plan', 'own', *options])}",
        f"  {command(['grid', 'own', *options])}",
        "with a CLIP that has seen photographs (open_clip fetches its weights once): add --set 'backbones=[vit-b-32]'",
    ]


def catalog_options(catalogs: Iterable[Path]) -> list[str | Path]:
    """The ``--catalog`` options for a user's catalog files."""
    return [word for path in catalogs for word in ("--catalog", path)]


def command(words: Sequence[str | Path]) -> str:
    """A command line, quoted for a shell."""
    return shlex.join(["python", "-m", "orchestrator", *map(str, words)])
