"""``adapt``: from a folder of photographs to the best model, in one command."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from orchestrator.cli import options
from orchestrator.util.console import Console, print_line
from orchestrator.util.errors import UserError


class AdaptCommand(TyperCommand):
    """The command ``adapt``.

    If an unknown option, such as ``--epochs``, is a setting of some default candidates, the error lists these.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # Typer has no public class for an unknown option
            option = str(getattr(error, "option_name", ""))
            setting = option.removeprefix("--").replace("-", "_")
            if option and (methods := _methods_with(setting)):
                hint = f'{setting} is a setting of {", ".join(methods)}, as in --methods "{methods[-1]}({setting}=...)"'
                raise UserError("adapt has no such option", where=option, hint=hint) from None
            raise


def _methods_with(setting: str) -> list[str]:
    """Return the default candidates that have a setting of this name."""
    from bolt.methods import METHODS
    from orchestrator.adapt.request import WITH_SOURCES

    return [name for name in WITH_SOURCES if setting in {field.name for field in fields(METHODS[name].settings_class)}]


@options.with_options
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
        list[str] | None, typer.Option("--methods", metavar="A,B", help='candidates, e.g. "linear_probe,lora(rank=4)"')
    ] = None,
    form: options.FormOption = "state_dict",
    *,
    images: options.ImageOptions,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, max=options.MOST_THREADS, help="CPU threads; by default all")
    ] = None,
    device: options.Device = None,
    settings: options.StoreSettings,
) -> None:
    """Choose a method for your own images and adapt it.

    No test label is used for the choice. The same command continues a run that was stopped.
    """
    from orchestrator.adapt.adapt_folder import adapt_folder
    from orchestrator.adapt.request import read_request
    from orchestrator.util.interrupt import EXIT_CODE, command_line, two_step_interrupt
    from orchestrator.util.machine import usable_processors

    if "://" in settings.store_url:
        raise UserError("adapt needs a store that is a folder on this machine", where="--store", hint="give a folder")
    texts, console = split_methods(",".join(methods or ())), Console()
    settings = replace(settings, threads=threads or usable_processors(), device=device)
    with two_step_interrupt(lambda: None):
        try:
            request = read_request(folder, output, backbone, sources, texts, minutes, form, images, settings, console)
            adapt_folder(request, console)
        except KeyboardInterrupt:
            print_line(f"stopped; finished steps are kept. Continue with: {command_line()}", console)
            raise typer.Exit(EXIT_CODE) from None


def split_methods(text: str) -> tuple[str, ...]:
    """Split the text at commas outside of brackets: ``a,b(c=1,d=2)`` into ``a`` and ``b(c=1,d=2)``."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(part.strip() for part in parts if part.strip())
