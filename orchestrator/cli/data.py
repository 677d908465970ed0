"""``data``: list, prepare, verify and add datasets. Only ``prepare`` and ``add hf:`` use the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.util.console import Console, print_line
from orchestrator.util.errors import UserError, unknown_name
from orchestrator.util.units import human_bytes

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog, DatasetEntry

app = typer.Typer(no_args_is_help=True, help="List, fetch, verify and add datasets.")

DEFAULT_CATALOG = Path("catalog.yaml")
"""The catalog file that ``data add`` writes if neither an option nor ``bolt.yaml`` names a catalog file."""


@dataclass(frozen=True)
class Asked:
    """The options that choose datasets, and the options with the files and folders that the datasets are read from."""

    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="datasets, or whole domains")] = None
    grid: Annotated[str | None, typer.Option("--grid", help="all datasets that this grid reads")] = None
    set_: options.SetValues = None
    data_root: options.DataRoot = None
    catalog: options.CatalogFiles = None

    def entries(self, catalog: Catalog) -> list[DatasetEntry]:
        """Return the entries of the datasets that the user asks for, each once.

        The name of a domain chooses all of its datasets. A grid chooses all datasets that it reads.

        Raises ``UserError`` for an unknown name, and if there is neither a name nor a grid.
        """
        chosen = _of_grid(self.grid, catalog, self.data_root, self.set_) if self.grid else []
        for name in self.names or ():
            if name in catalog.datasets:
                chosen.append(catalog.datasets[name])
            elif name in catalog.domains:
                chosen += catalog.datasets_of(name)
            else:
                raise unknown_name("dataset or domain", name, [*catalog.datasets, *catalog.domains])
        if not chosen:
            hint = "name datasets or domains, or give --grid GRID; see `data list`"
            raise UserError("no dataset is named", hint=hint)
        return list({entry.name: entry for entry in chosen}.values())


AskedDatasets = Annotated[Asked, Asked]


@app.command("list")
def list_datasets(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="only what this grid reads")] = None,
    domain: Annotated[str | None, typer.Option("--domain", help="only this domain")] = None,
    set_: options.SetValues = None,
    data_root: options.DataRoot = None,
    catalog: options.CatalogFiles = None,
) -> None:
    """List datasets with their state, their size, and how to get them."""
    from orchestrator.catalog import load_catalog
    from orchestrator.datasets.listing import datasets_view

    loaded = load_catalog(catalog or ())
    entries = _of_grid(grid, loaded, data_root, set_) if grid else list(loaded.datasets.values())
    if domain is not None:
        loaded.domain(domain, "--domain")
        entries = [entry for entry in entries if entry.domain == domain]
    table, lines = datasets_view(entries, data_root, catalog or ())
    console = options.table_console()
    console.print(table)
    print_line(lines, console)


@app.command()
@options.with_options
def prepare(
    asked: AskedDatasets, yes: Annotated[bool, typer.Option("--yes", help="do not ask before fetching")] = False
) -> None:
    """Fetch datasets.

    The same command continues an interrupted download.
    """
    from orchestrator.catalog import load_catalog
    from orchestrator.datasets.prepare import by_hand_error, check_space, plan_preparation, prepare_one

    root = _folder_to_fill(asked.data_root)
    there, jobs, by_hand = plan_preparation(asked.entries(load_catalog(asked.catalog or ())), root)
    for line in there:
        print_line(line)
    if jobs:
        for job in jobs:
            print_line(job.line)
        print_line(check_space(jobs, root))
        if not yes and not Console().is_terminal:
            what = "nothing was fetched: without a terminal, nobody can confirm"
            raise UserError(what, hint="--yes fetches without asking")
        if not yes:
            typer.confirm("fetch them, under these licences?", abort=True)
    failures = 0
    for job in jobs:
        try:
            record = prepare_one(job.entry, root, Console())
        except UserError as error:
            failures += 1
            print_line(f"error: {error}")
            continue
        if record is None:
            print_line(f"{job.entry.name} is there: another command has prepared it")
            continue
        counts = ", ".join(f"{count} {part}" for part, count in record.manifest.counts.items())
        size = human_bytes(record.bytes)
        print_line(f"{job.entry.name} is there: {record.manifest.classes} classes, {counts}, {size}")
        for line in record.differs:
            print_line(f"  differs from the catalog: {line}")
    if by_hand:
        raise by_hand_error(by_hand, root)
    if failures == 1 == len(jobs):
        raise typer.Exit(2)
    if failures:
        raise UserError(f"{failures} of {len(jobs)} datasets could not be prepared; see above")


@app.command()
@options.with_options
def verify(asked: AskedDatasets, exclude: options.ExcludeBroken = False) -> None:
    """Decode and count every image of datasets.

    The exit code is 1 if an image cannot be decoded, if images of your own have changed since they were added, or if
    another dataset differs from the catalog.
    """
    from orchestrator.catalog import load_catalog
    from orchestrator.datasets.changes import changed_data
    from orchestrator.datasets.listing import verified_view
    from orchestrator.datasets.opening import open_dataset
    from orchestrator.datasets.progress import show_progress
    from orchestrator.datasets.verify import exclude_broken, verify_dataset

    console = Console()
    unreadable = changed = False
    loaded, data_root = load_catalog(asked.catalog or ()), asked.data_root
    for entry in asked.entries(loaded):
        file = loaded.files["datasets", entry.name]
        try:
            with show_progress(f"decoding {entry.name}", console) as advance:
                found = verify_dataset(entry, open_dataset(entry, data_root), data_root, advance)
        except UserError:
            if (change := changed_data(entry, data_root, file)) is None:
                raise
            print_line(f"{change}", console, "yellow")
            changed = True
            continue
        console.print(verified_view(found), soft_wrap=True)
        if found.broken and exclude and data_root is not None:
            path = exclude_broken(found, data_root)
            print_line(f"excluded: {len(found.broken)}, listed in {path}")
        else:
            unreadable |= bool(found.broken)
        if change := changed_data(entry, data_root, file):
            print_line(f"{change}", console, "yellow")
        changed |= change is not None or bool(found.differs and not entry.is_own)
    if unreadable:
        broken = "a grid cannot use a dataset that has broken images"
        print_line(f"{broken}: repair them, or exclude them with --exclude-broken")
    if unreadable or changed:
        raise typer.Exit(1)


@app.command()
@options.with_options
def add(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="a folder or a table of images, tar shards, or hf:OWNER/NAME"),
    ],
    catalog: options.CatalogFiles = None,
    name: Annotated[str | None, typer.Option("--name", help="dataset's name; by default the folder's name")] = None,
    title: Annotated[str | None, typer.Option("--title", help="name of the dataset in tables")] = None,
    domain: Annotated[str, typer.Option("--domain", help="domain of the dataset")] = "own",
    *,
    images: options.ImageOptions,
    licence: Annotated[str, typer.Option("--licence", help="the licence of the images")] = "own images",
    data_root: Annotated[Path | None, options.data_root_option("folder for the files of hf:OWNER/NAME")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="KEY=NAME", help="the column of a table that holds path, label or split"),
    ] = None,
    replace_: Annotated[
        bool, typer.Option("--replace", help="replace a dataset of this name whose images have changed")
    ] = False,
) -> None:
    """Add your own images to a catalog file, and write a grid file that measures methods on them.

    First, every image is decoded and checked.
    """
    from orchestrator.cli.project import remember, write_grid_file
    from orchestrator.datasets.adding import add_dataset, dataset_key
    from orchestrator.datasets.hub_datasets import fetch_layout, hub_name
    from orchestrator.datasets.listing import added_lines
    from orchestrator.datasets.progress import show_progress
    from orchestrator.datasets.routes.tar_shards import one_pattern

    files = catalog or [DEFAULT_CATALOG]
    columns = dict(text.partition("=")[::2] for text in column or ())
    if not {"path", "label", "split"} >= columns.keys() or "" in columns.values():
        raise UserError(f"give path=NAME, label=NAME or split=NAME, not {' '.join(column or ())}", where="--column")
    stated = replace(images, name=name, title=title, domain=domain, licence=licence, replace=replace_, columns=columns)
    path, find = one_pattern(paths), None
    if str(path).startswith("hf:"):
        find = partial(fetch_layout, str(path), _folder_to_fill(data_root), Console())
        path = hub_name(str(path))
    with show_progress(f"decoding {name or dataset_key(path)}", Console()) as advance:
        added = add_dataset(path, files, stated, advance, find)
    project = remember(files, added.data_root)
    grid, kept = write_grid_file(added, files[-1])
    for line in added_lines(added, files[-1], grid, project.missing_options(files, added.data_root)):
        print_line(line)
    if kept:
        print_line(f"{grid} exists with other text and was not changed; remove the file to have it written again")


def _folder_to_fill(data_root: Path | None) -> Path:
    """Return the absolute path of the data root, for files to fetch. Raises ``UserError`` if none is given."""
    if data_root is None:
        raise UserError("no data root is given", hint="pass --data-root PATH or set BOLT_DATA")
    return data_root.absolute()


def _of_grid(grid: str, catalog: Catalog, root: Path | None, set_: Sequence[str] | None) -> list[DatasetEntry]:
    from orchestrator.grid import load_grid

    return list(load_grid(grid, catalog, set_=set_ or (), data_root=root).datasets.values())
