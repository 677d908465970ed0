"""Options and groups of options that several commands share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from orchestrator.core.settings import RunSettings
from orchestrator.tracks import MetricName
from orchestrator.util.console import Console
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from bolt.clip.image_files import Reading
    from orchestrator.datasets.adding import DatasetOptions

Value = TypeVar("Value")

DEFAULT_STORE = "runs"

MOST_THREADS = 1024
"""The largest number of threads. More threads crash PyTorch's thread pool."""

PLAIN_WIDTH = 150
"""Width, in columns, of a table that is printed to a file or a pipe."""

PROJECT_FILE = Path("bolt.yaml")
"""The project file in the working folder, which ``project.py`` reads and writes."""

Form = Literal["adapter", "state_dict", "huggingface"]
"""The forms of :mod:`bolt.model.saving`, repeated here because importing that module takes seconds."""


def store_url(store: str) -> str:
    """Return a URL unchanged, and a folder as its absolute path.

    Raises ``UserError`` for an empty name, and for a URL without ``//`` (``s3:BUCKET``).
    """
    if not store.strip():
        hint = "give a folder or a URL such as s3://BUCKET/FOLDER"
        raise UserError("the name of the store is empty", where="--store", hint=hint)
    if half := re.match(r"([a-z][a-z0-9+]+):(?!//)/*", store):
        hint = f"did you mean {half[1]}://{store[half.end() :]}? To use a folder of that name, give ./{store}"
        raise UserError(f"{store!r} is neither a folder nor a URL", where="--store", hint=hint)
    return store if "://" in store else os.path.abspath(os.path.expanduser(store))


def at_home(word: str) -> str:
    """Return a path, or an option with one (``--output=~/model``, ``-o~/model``), with ``~`` as the home folder.

    ``~NAME`` of an unknown user stays as it is.
    """
    option, path = re.fullmatch(r"(--[\w-]+=|-\w)?(.*)", word, re.DOTALL).groups("")  # type: ignore[union-attr]
    return f"{option}{os.path.expanduser(path)}"


def data_folder(path: str | Path) -> Path:
    """Return the data root. Raises ``UserError`` for an empty text, which Python would take for the current folder."""
    if not str(path).strip():
        raise UserError("the data root is empty", where="--data-root", hint="give a folder, or leave the option out")
    return Path(os.path.expanduser(path))  # Path.expanduser() raises an error for an unknown user


JSON_FORMAT = 1
"""Version of the output of ``--json``. Within a version, fields may be added, but not removed or changed in meaning."""


def print_json(record: Mapping[str, Any]) -> None:
    """Print the record as one JSON object for programs. Its field ``format`` is :data:`JSON_FORMAT`."""
    typer.echo(json.dumps({"format": JSON_FORMAT, **record}, indent=1))


def check_device(device: str | None) -> str | None:
    """Return the device, unchanged. Raises ``UserError`` if it is neither ``cpu`` nor a GPU of CUDA."""
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UserError(f"unknown device {device!r}", where="--device", hint="give cpu or cuda")
    return device


def data_root_option(help_text: str) -> Any:
    """Return the option ``--data-root``, which says with ``help_text`` what a command uses the folder for."""
    return typer.Option("--data-root", envvar="BOLT_DATA", parser=data_folder, metavar="PATH", help=help_text)


GridName = Annotated[str, typer.Argument(metavar="GRID", help="name of a grid (grids/NAME.yaml), or path of its file")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, described in docs/automation.md")]
OptionalGrid = Annotated[str | None, typer.Argument(metavar="[GRID]", help="name of a grid, or path of its file")]
SetValues = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a grid's value; may be repeated")
]
StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="BOLT_STORE",
        callback=store_url,
        help="folder, or s3://BUCKET/FOLDER, that keeps artifacts and results",
    ),
]
DataRoot = Annotated[Path | None, data_root_option("folder that holds your image folders")]
CatalogFiles = Annotated[
    list[Path] | None, typer.Option("--catalog", help="a catalog file of your own; may be repeated")
]
OwnCatalog = Annotated[
    list[Path], typer.Option("--catalog", help="your catalog file; the last of several gets the new entries")
]
ExcludeBroken = Annotated[bool, typer.Option("--exclude-broken", help="exclude unreadable images, and use the others")]
Threads = Annotated[
    int, typer.Option("--threads", min=1, max=MOST_THREADS, help="number of CPU threads that compute a cell")
]
Device = Annotated[
    str | None, typer.Option("--device", callback=check_device, help="cpu or cuda; by default cuda if there is a GPU")
]
Metric = Annotated[
    MetricName | None,
    typer.Option("--metric", help="metric to compare by; default accuracy (track imbalanced: balanced_accuracy)"),
]
FormOption = Annotated[Form, typer.Option("--as", help="the form of the model")]


def with_options(command: Callable[..., Value]) -> Callable[..., Value]:
    """Return a command in whose signature a group of options takes the place of one parameter.

    A parameter stands for a group if its annotation holds a function or a class, such as :func:`store_settings`. Typer
    makes an option of each parameter of this function or class. When the command is called, the function or class is
    called with the values of these options, and its return value is passed to the original parameter.
    """
    own = signature(command, eval_str=True).parameters
    makers: dict[str, Any] = {name: getattr(each.annotation, "__metadata__", [None])[0] for name, each in own.items()}
    groups = {name: signature(make, eval_str=True).parameters for name, make in makers.items() if callable(make)}
    options = [option for name in own for option in groups.get(name, {name: own[name]}).values()]

    @wraps(command)
    def called(**values: Any) -> Value:
        for name, group in groups.items():
            values[name] = makers[name](**{each: values.pop(each) for each in group if each in values})
        return command(**values)

    keywords = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in options]
    called.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in keywords}
    return called


def store_settings(
    store: StoreUrl = DEFAULT_STORE, data_root: DataRoot = None, catalog: CatalogFiles = None
) -> RunSettings:
    """Return the settings of a command that reads a store."""
    files = tuple(str(path.absolute()) for path in catalog or ())
    return RunSettings(store, str(data_root.absolute()) if data_root else None, catalog_files=files)


StoreSettings = Annotated[RunSettings, store_settings]


@with_options
def compute_settings(settings: StoreSettings, threads: Threads = 1, device: Device = None) -> RunSettings:
    """Return the settings of a command that computes."""
    return replace(settings, threads=threads, device=device)


ComputeSettings = Annotated[RunSettings, compute_settings]


def image_options(
    template: Annotated[
        list[str] | None, typer.Option("--template", help='a prompt, such as "a photo of a {}."; may be repeated')
    ] = None,
    words: Annotated[
        Path | None, typer.Option("--words", metavar="CSV", help="table of class words: folder,word[,sentence...]")
    ] = None,
    bands: Annotated[
        str | None,
        typer.Option("--bands", metavar="R,G,B", help="bands of the image files to read, e.g. 4,3,2, or a single one"),
    ] = None,
    range_: Annotated[
        str | None, typer.Option("--range", metavar="LOW,HIGH", help="pixel values: LOW becomes black, HIGH white")
    ] = None,
    mirrorable: Annotated[
        bool, typer.Option("--mirrorable/--not-mirrorable", help="whether a mirrored image keeps its class")
    ] = True,
    exclude_broken: ExcludeBroken = False,
) -> Any:  # returns a DatasetOptions; importing this class takes half a second
    """Return the user's statements about their images. Raises ``UserError`` for invalid bands or an invalid range."""
    from orchestrator.datasets.adding import DatasetOptions

    return DatasetOptions(
        templates=tuple(template or ()), words=words, reading=image_reading(bands, range_), mirrorable=mirrorable,
        exclude_broken=exclude_broken,
    )  # fmt: skip


ImageOptions = Annotated["DatasetOptions", image_options]


def image_reading(bands: str | None, range_: str | None) -> Reading:
    """Return how images are to be read, given ``--bands`` and ``--range``. Raises ``UserError`` for invalid text."""
    from bolt.clip.image_files import Reading

    reading, where, hint = Reading(), "--bands", "give one band, or three for red, green and blue, such as 4,3,2"
    try:
        if bands is not None:
            reading = Reading(bands=tuple(map(int, bands.split(","))))
        where, hint = "--range", "give the value that becomes black and a larger one that becomes white, such as 0,3000"
        if range_ is not None:
            low, high = map(float, range_.split(","))
            reading = replace(reading, range=(low, high))
    except ValueError:
        given = bands if where == "--bands" else range_
        raise UserError(f"{given!r} cannot be used", where=where, hint=hint) from None
    return reading


def table_console() -> Console:
    """Return a console for tables: as wide as the terminal, or ``PLAIN_WIDTH`` columns for a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)
