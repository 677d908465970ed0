"""``inspect``: write a page about one finished cell: its mistakes, its training, and other methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import ComputeSettings, with_options
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.console import print_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@with_options
def inspect(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="a cell's id, or the beginning of one")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="the page's path; by default reports/cells/CELL.html in the store"),
    ] = None,
    *,
    settings: ComputeSettings,
) -> None:
    """Write a page about one finished cell.

    The page compares the cell with every method that was measured on the same images. It shows the images that only
    this cell classifies correctly, its most confident mistakes, accuracy by class, the training, coefficients and the
    overlap of the sources.
    """
    from orchestrator.artifacts.images import Images
    from orchestrator.artifacts.spec import ArtifactCache
    from orchestrator.models.find_result import find_result
    from orchestrator.models.inspection import inspect_cell
    from orchestrator.report.page.cell_page import render_cell_page
    from orchestrator.store.files import local_folder

    loaded = ArtifactCache(settings)
    result, files = find_result(loaded.store, cell), loaded.store.files
    refs = {dataset.name: dataset for dataset in result.cell.evaluate_on}

    def image_of(dataset: str, row: int) -> NDArray[np.uint8]:
        images = Images(refs[dataset], "test", loaded.image_size(result.cell.backbone))
        return loaded.get(images).image(row).numpy()

    page = render_cell_page(inspect_cell(result, loaded), image_of).encode()
    name, where = f"reports/cells/{result.cell.id}.html", ""
    path = output or local_folder(files, name)
    with writing("the page", str(path), "-o FILE writes the page into another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(page)
    if output is None and not files.is_local:
        files.write(name, page)
        where = f", and in the store {files.location(name)}"
    print_line(f"page: {path}{where}")
