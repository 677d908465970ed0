"""The options of ``adapt``: read, checked and completed before the first image is decoded."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bolt.methods.auto import FROZEN_CANDIDATES
from bolt.methods.common.candidates import Candidate, parse_candidate
from bolt.methods.common.prompts import DeepPromptSettings
from bolt.model.saving import Form
from orchestrator.artifacts.load_backbone import fetch_weights
from orchestrator.artifacts.spec import usable_device
from orchestrator.catalog import BackboneEntry, load_catalog
from orchestrator.catalog.validation import as_key, check_templates
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import DatasetOptions
from orchestrator.datasets.class_words import Words, class_words
from orchestrator.datasets.layouts import Layout, folder_layout
from orchestrator.grid.resolve import missing_part
from orchestrator.models.export import check_form
from orchestrator.util.atomic_files import nearest_existing, writing
from orchestrator.util.errors import UserError, explained
from orchestrator.util.locks import LockHeld, file_lock

WITHOUT_SOURCES = (*FROZEN_CANDIDATES, "logistic_probe", "lora")
WITH_SOURCES = ("bolt", "bolt_pooled", *WITHOUT_SOURCES)
"""The default candidates, the most trusted first. If no image can be held out, the first one is taken. If several are
equally accurate, the first of these is taken."""

TINY = "tiny-clip"
TINY_RATES = {"lora": "lora(learning_rate=0.001)", "bolt": "bolt(learning_rate=0.01)"}
TINY_FINE_TUNING = {"epochs": 8, "batch_size": 32, "learning_rate": 5e-4, "warmup_steps": 50}
"""Settings for the backbone ``TINY``: the learning rates of candidates (``TINY_RATES``), and the recipe that fine-tunes
source models. ``grids/demo-fewshot.yaml`` has the same values. The papers' learning rates are for larger towers."""

KEPT = "finished steps are kept: make room or name another folder, and run the command again"

_WITHOUT_WEIGHTS = (
    "and name it here: --backbone NAME --catalog FILE",
    "or try the command with --backbone tiny-clip, which needs no network. tiny-clip knows drawings only, so its "
    "accuracy says nothing about CLIP",
)


@dataclass(frozen=True)
class Request:
    """What one run of ``adapt`` is asked for. :func:`read_request` makes it from the user's options.

    Attributes:
        folder: absolute path of the folder of images.
        layout: how the folder is laid out.
        name: the name of the working folder.
        dataset: the name of the images as a dataset. It differs from ``name`` if the catalog has a dataset of that
            name.
        model: the folder of the model, which must not exist.
        page: the file of the page. It has the path of the model with the suffix ``.html``.
        sources: a domain of the catalog, or a folder of checkpoints; ``None`` for no sources.
        candidates: the candidates, the most trusted first.
        images: the user's statements about the images, such as prompts and whether mirrored images keep their class.
        words: the words of the classes.
        settings: the settings of the run, with the user's catalog files and data root.
        started: when the command began, by ``time.perf_counter``.
    """

    folder: Path
    layout: Layout
    name: str
    dataset: str
    model: Path
    page: Path
    backbone: BackboneEntry
    sources: str | None
    candidates: Sequence[Candidate]
    minutes: float
    form: Form
    images: DatasetOptions
    words: Words
    settings: RunSettings
    started: float

    @property
    def work(self) -> Path:
        """The working folder."""
        return Path(self.settings.store_url, "adapt", self.name)


def read_request(
    folder: Path,
    model: Path | None,
    backbone: str,
    sources: str | None,
    methods: tuple[str, ...],
    minutes: float,
    form: Form,
    images: DatasetOptions,
    settings: RunSettings,
    console: Console,
) -> Request:
    """Read and check every option that can be checked without decoding an image, and fetch the backbone's weights.

    Args:
        model: the folder of the model; by default ``NAME-model``.
        methods: the candidates as text; empty for the default candidates.

    Raises ``UserError`` that names the option.
    """
    started, folder = time.perf_counter(), folder.absolute()
    layout = folder_layout(folder, tested=False)
    catalog = load_catalog(settings.catalog_files)
    entry = catalog.backbone(backbone, "--backbone")
    if settings.data_root is not None and not Path(settings.data_root).is_dir():
        raise UserError(f"there is no folder {settings.data_root}", where="--data-root")
    if sources is not None and not Path(sources).is_dir() and sources not in catalog.domains:
        hint = f"give a folder of fine-tuned checkpoints, or a domain: {', '.join(catalog.domains)}"
        raise UserError(f"{sources!r} is neither a folder nor a domain", where="--sources", hint=hint)
    name = as_key(folder.name) or "images"
    model = model or Path(f"{name}-model")
    refuse_existing(model)
    page = model.with_name(f"{model.name}.html")
    if page.is_dir():
        raise UserError(f"{page}, the file of the page, is a folder", where="-o", hint="name another model")
    usable_device(settings)
    if images.templates:
        with explained(ValueError, where="--template"):
            check_templates(images.templates)
    parts = [os.path.realpath(part) for part in layout.parts.values()]
    for option, path in (("-o", model), ("--store", Path(settings.store_url))):
        if any(map(Path(os.path.realpath(path)).is_relative_to, parts)):
            hint = "run the command in another folder, or give --store and -o outside of the images"
            raise UserError(f"{path} is inside the folder of the images, {folder}", where=option, hint=hint)
        above = nearest_existing(path)
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UserError(f"{path} cannot be made: {above} is not a writable folder", where=option)
    if not entry.has_matrices:  # a tower without weight matrices is saved as an adapter only
        form = "adapter"
    candidates = _read_candidates(methods, entry, form, with_sources=sources is not None)
    words = class_words(layout.names, images.words)
    fetch_weights(entry, console, where="--backbone", instead=_WITHOUT_WEIGHTS)
    dataset = f"{name}-own" if name in catalog.datasets else name
    return Request(
        folder, layout, name=name, dataset=dataset, model=model, page=page, backbone=entry, sources=sources,
        candidates=candidates, minutes=minutes, form=form, images=images, words=words, settings=settings,
        started=started,
    )  # fmt: skip


def _read_candidates(
    methods: tuple[str, ...], backbone: BackboneEntry, form: Form, *, with_sources: bool
) -> list[Candidate]:
    """Return the candidates that the user named; by default, the default candidates that run on the backbone.

    Args:
        methods: the candidates as text; empty for the default candidates.
        form: the form of the model's file.
        with_sources: whether the user gives source models.

    Raises ``UserError`` for a candidate that cannot be parsed, is given twice, changes a setting that has no effect,
    needs sources that the user does not give, needs a part that the backbone lacks, such as weight matrices, or cannot
    be saved in the form. Also raises ``UserError`` if the user gives sources and no candidate reads them.
    """
    texts = methods or (WITH_SOURCES if with_sources else WITHOUT_SOURCES)
    if backbone.name == TINY and not methods:
        texts = tuple(TINY_RATES.get(text, text) for text in texts)
    with explained(ValueError, where="--methods"):
        candidates = [parse_candidate(text) for text in texts]
        for candidate in candidates:
            candidate.method.check_effects(candidate.settings, "fewshot")
    if not methods:
        candidates = [each for each in candidates if not missing_part(each.method, each.settings, backbone)]
    for candidate in candidates:
        if lacks := missing_part(candidate.method, candidate.settings, backbone):
            what = f"{candidate.method.name} needs {lacks}"
            raise UserError(what, where="--methods", hint="leave the method out, or take another --backbone")
        if candidate.uses_sources and not with_sources:
            what = f"{candidate.method.name} needs source models"
            raise UserError(what, where="--methods", hint="give --sources DOMAIN")
    if with_sources and not any(candidate.uses_sources for candidate in candidates):
        what = "none of the methods reads source models"
        raise UserError(what, where="--sources", hint="leave --sources out, or add bolt to --methods")
    if len(set(texts)) < len(texts):
        raise UserError("a candidate is given twice", where="--methods")
    for candidate in candidates:
        learns_tokens = isinstance(candidate.settings, DeepPromptSettings)
        check_form(form, backbone, candidate.method.name if learns_tokens else None)
    return candidates


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
