"""The options of ``adapt``, and their checks before the first image is decoded."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bolt.model.saving import Form
from orchestrator.artifacts.spec import usable_device
from orchestrator.catalog import Catalog
from orchestrator.catalog.validation import check_templates
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import DatasetOptions
from orchestrator.util.atomic_files import nearest_existing, writing
from orchestrator.util.errors import UserError, explained
from orchestrator.util.locks import LockHeld, file_lock

KEPT = "finished steps are kept: make room or name another folder, and run the command again"


@dataclass(frozen=True)
class Request:
    """The options of one run of ``adapt``.

    Attributes:
        folder: absolute path of the folder of images.
        name: the name of the working folder and of the dataset.
        model: the folder of the model, which must not exist. The page has the same path with the suffix ``.html``.
        sources: a domain of the catalog, or a folder of checkpoints; ``None`` for no sources.
        methods: the candidates as text; empty for the default candidates.
        images: the user's statements about the images, such as prompts and whether mirrored images keep their class.
        settings: the settings of the run, with the user's catalog files and data root.
    """

    folder: Path
    name: str
    model: Path
    backbone: str
    sources: str | None
    methods: tuple[str, ...]
    minutes: float
    form: Form
    images: DatasetOptions
    settings: RunSettings

    @property
    def work(self) -> Path:
        """The working folder."""
        return Path(self.settings.store_url, "adapt", self.name)

    @property
    def page(self) -> Path:
        """The file of the page."""
        return self.model.with_name(self.model.name + ".html")


def check_request(request: Request, catalog: Catalog, parts: Iterable[Path]) -> None:
    """Check every option that can be checked without decoding an image. Raises ``UserError`` that names the option.

    Args:
        catalog: the catalog with the user's catalog files.
        parts: the folders of the images. Neither the model nor the store may be inside them.
    """
    settings = request.settings
    if settings.data_root is not None and not Path(settings.data_root).is_dir():
        raise UserError(f"there is no folder {settings.data_root}", where="--data-root")
    if request.sources is not None and not Path(request.sources).is_dir() and request.sources not in catalog.domains:
        hint = f"give a folder of fine-tuned checkpoints, or a domain: {', '.join(catalog.domains)}"
        raise UserError(f"{request.sources!r} is neither a folder nor a domain", where="--sources", hint=hint)
    refuse_existing(request.model)
    if request.page.is_dir():
        raise UserError(f"{request.page}, the file of the page, is a folder", where="-o", hint="name another model")
    usable_device(settings)
    if request.images.templates:
        with explained(ValueError, where="--template"):
            check_templates(request.images.templates)
    images = [os.path.realpath(part) for part in parts]
    for option, path in (("-o", request.model), ("--store", Path(settings.store_url))):
        if any(map(Path(os.path.realpath(path)).is_relative_to, images)):
            what = f"{path} is inside the folder of the images, {request.folder}"
            hint = "run the command in another folder, or give --store and -o outside of the images"
            raise UserError(what, where=option, hint=hint)
        above = nearest_existing(path)
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UserError(f"{path} cannot be made: {above} is not a writable folder", where=option)


def refuse_existing(model: Path) -> None:
    """Raise ``UserError`` if the folder of the model exists."""
    if model.exists():
        raise UserError(f"{model} is there already", where="-o", hint="name another folder, or remove this one")


@contextmanager
def working_folder(request: Request, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the working folder during the block, so that only one process writes into it.

    Raises ``UserError`` if the folder cannot be made, or if another process has written the model meanwhile.
    """
    lock = request.work.with_name(f"{request.work.name}.lock")
    with ExitStack() as stack:
        with writing(f"the working folder {request.work}", "--store", KEPT):
            request.work.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(file_lock(lock))
            except LockHeld as process:
                say(f"process {process} works in {request.work}; waiting for its end")
                stack.enter_context(file_lock(lock, wait=True))
        refuse_existing(request.model)  # the other process may have written the model
        yield
