"""``sources``: list source models, adopt checkpoints of other projects, verify them, and export source models."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.util.console import print_line

app = typer.Typer(no_args_is_help=True, help="List, adopt, verify and export source models.")

OneBackbone = Annotated[str | None, typer.Option("--backbone", metavar="B", help="only this backbone")]


@app.command("list")
def list_sources(
    backbone: OneBackbone = None, store: options.StoreUrl = options.DEFAULT_STORE, catalog: options.CatalogFiles = None
) -> None:
    """List the source model of every backbone and dataset.

    A source model is an adopted file, was fine-tuned in this store, or is still to be fine-tuned.
    """
    from orchestrator.catalog import load_catalog
    from orchestrator.models.stored_sources import source_table
    from orchestrator.store import Store

    options.table_console().print(source_table(load_catalog(catalog or ()), Store(store), backbone))


@app.command()
def adopt(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="files, folders, or hf:OWNER/NAME[@REVISION]")],
    backbone: Annotated[str, typer.Option("--backbone", metavar="B", help="backbone of the fine-tuning")],
    catalog: options.OwnCatalog,
    dataset: Annotated[str | None, typer.Option("--dataset", metavar="D", help="dataset of the fine-tuning")] = None,
    copy: Annotated[bool, typer.Option("--copy", help="copy the files to a folder next to the catalog file")] = False,
    note: Annotated[str, typer.Option("--note", help="origin of the checkpoints")] = "",
) -> None:
    """Use fine-tuned checkpoints as sources.

    The checkpoints are checked and added to a catalog file. Grids use them with --catalog.
    """
    from orchestrator.models.adoption import adopt_checkpoints

    adopt_checkpoints(paths, backbone, dataset, catalog, copy=copy, note=note, say=print_line)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder for the files")],
    backbone: OneBackbone = None,
    cell: Annotated[
        str | None, typer.Option("--cell", metavar="CELL", help="only the source models of this finished cell")
    ] = None,
    store: options.StoreUrl = options.DEFAULT_STORE,
) -> None:
    """Copy the source models of a store into a folder.

    A model that was exported as an adapter recognizes its source models in the folder by their content.
    """
    from orchestrator.models.stored_sources import export_sources
    from orchestrator.store import Store
    from orchestrator.util.units import pluralize

    written = export_sources(Store(store), folder, backbone=backbone, cell=cell)
    for path in written:
        print_line(f"  {path}")
    print_line(f"{pluralize(len(written), 'source model')} written to {folder}. Python code to read them:")
    print_line(f'  sources = bolt.load_sources("{folder}", backbone)')


@app.command()
@options.with_options
def verify(backbone: OneBackbone = None, *, settings: options.ComputeSettings) -> None:
    """Check every adopted checkpoint again.

    The accuracy of a checkpoint is measured if the images of its dataset are on this machine.
    """
    from orchestrator.models.adoption import verify_checkpoints

    raise typer.Exit(0 if verify_checkpoints(settings, backbone, say=print_line) else 1)
