"""``adapt``: from a folder of photographs to the best model, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from orchestrator.cli.options import (
    DEFAULT_STORE,
    FORMS,
    MOST_THREADS,
    CatalogFiles,
    DataRoot,
    Device,
    ExcludeBroken,
    Mirrorable,
    StoreUrl,
    Templates,
    check_device,
    store_url,
)
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def adapt(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="one folder of images per class, or train/ and test/ with such folders"),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="MODEL", help="folder for the model; by default NAME-model")
    ] = None,
    backbone: Annotated[str, typer.Option("--backbone", metavar="B", help="which CLIP of the catalog")] = "vit-b-32",
    sources: Annotated[
        str | None,
        typer.Option("--sources", metavar="FOLDER|DOMAIN", help="fine-tuned models: a folder of them, or a domain"),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="about how long to try candidates")] = 10.0,
    methods: Annotated[
        str | None, typer.Option("--methods", metavar="A,B", help='candidates, as "linear_probe,lora(rank=4)"')
    ] = None,
    form: Annotated[
        str, typer.Option("--as", metavar="FORM", help=f"the form of the model: {', '.join(FORMS)}")
    ] = "state_dict",
    template: Templates = None,
    mirrorable: Mirrorable = True,
    exclude_broken: ExcludeBroken = False,
    store: StoreUrl = DEFAULT_STORE,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, max=MOST_THREADS, help="CPU threads; by default all")
    ] = None,
    device: Device = None,
) -> None:
    """Choose a method for your own images and adapt it.

    No test label is used for the choice. The same command continues a run that was stopped.
    """
    from orchestrator.adapt.adapt_folder import adapt_folder
    from orchestrator.adapt.adaptation import Request, summary_lines
    from orchestrator.adapt.own_images import Options, own_key
    from orchestrator.catalog import find_data_root
    from orchestrator.datasets.progress import show_progress
    from orchestrator.util.interrupt import EXIT_CODE, command_line, two_step_interrupt
    from orchestrator.util.machine import usable_processors

    if form not in FORMS:
        raise unknown_name("form", form, FORMS, where="--as")
    if "://" in store:
        raise UserError("adapt works in a folder of this machine", where="--store", hint="give a folder")
    name, console = own_key(folder), Console()
    root = find_data_root(data_root)
    request = Request(
        folder=folder,
        work=Path(store_url(store)) / "adapt" / name,
        model=(output or Path(f"{name}-model")).absolute(),
        backbone=backbone,
        sources=sources,
        methods=split_methods(methods or ""),
        minutes=minutes,
        form=form,  # type: ignore[arg-type]
        images=Options(tuple(template or ()), mirrorable, exclude_broken),
        catalog_files=tuple(path.absolute() for path in catalog or ()),
        data_root=root.absolute() if root else None,
        store_url=store_url(store),
        threads=threads or usable_processors(),
        device=check_device(device),
        command=command_line(),
    )

    def say(line: str) -> None:
        print_line(line, console)

    spinner = console.status("")

    def status(text: str) -> None:
        spinner.update(text)
        spinner.start()

    def show_decoding() -> AbstractContextManager[Callable[[int, int | None], None]]:
        spinner.stop()  # a console shows one live display at a time
        return show_progress(f"decoding {name}", console)

    with two_step_interrupt(lambda: None):
        try:
            done = adapt_folder(request, say, status, show_decoding)
        except KeyboardInterrupt:
            say(f"stopped; finished steps are kept. Continue with: {command_line()}")
            raise typer.Exit(EXIT_CODE) from None
        finally:
            spinner.stop()
    for line in summary_lines(done):
        say(line)


def split_methods(text: str) -> tuple[str, ...]:
    """``a,b(c=1,d=2)`` -> ``a`` and ``b(c=1,d=2)``."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(part.strip() for part in parts if part.strip())
