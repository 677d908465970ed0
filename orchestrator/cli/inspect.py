"""``inspect``: write a page about one finished cell: its mistakes, coefficients and sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import DEFAULT_STORE, CatalogFiles, DataRoot, Device, StoreUrl, Threads, run_settings
from orchestrator.store import Store
from orchestrator.util.console import print_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def inspect(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="a cell's id, or the beginning of one")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="the page's path; by default reports/cells/CELL.html in the store"),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
    threads: Threads = 1,
    device: Device = None,
) -> None:
    """Write a page about one finished cell.

    It shows accuracy by class, confusions, the worst mistakes, coefficients and the overlap of the sources.
    """
    from orchestrator.artifacts.images import Images
    from orchestrator.artifacts.loaded import LoadedArtifacts
    from orchestrator.models.find_result import find_result
    from orchestrator.models.inspection import inspect_cell
    from orchestrator.report.page.cell_page import render_inside
    from orchestrator.store.local_mirror import local_folder

    settings = run_settings(store, data_root, catalog, threads, device)
    opened = Store(settings.store_url)
    result = find_result(opened, cell)
    loaded = LoadedArtifacts(settings)
    refs = {dataset.name: dataset for dataset in result.cell.evaluate_on}

    def image_of(dataset: str, place: int) -> NDArray[np.uint8]:
        images = Images(refs[dataset], "test", loaded.image_size(result.cell.backbone))
        return loaded.get(images).image(place).numpy()

    page = render_inside(inspect_cell(result, loaded), image_of).encode()
    name, where = f"reports/cells/{result.cell.id}.html", ""
    path = output or local_folder(opened.files, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(page)
    if output is None and not opened.files.is_local:
        opened.files.write(name, page)
        where = f", and in the store {opened.files.location(name)}"
    print_line(f"page: {path}{where}")
