"""From a folder of photographs to a model and a page: the steps of ``adapt``, in order.

Everything that takes long is in the store when it is finished, so the same command continues after a kill.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bolt.methods.common.candidates import parse_candidate
from bolt.model.checkpoint_sources import checkpoint_paths
from bolt.model.model import Model
from orchestrator.adapt.adaptation import Adaptation, Request
from orchestrator.adapt.checks import check_request
from orchestrator.adapt.choice import Choice, choose
from orchestrator.adapt.held_out_fold import threads_for
from orchestrator.adapt.own_images import OwnImages, prepare_images
from orchestrator.adapt.trials import TINY, Trials, candidate_texts, make_trials, test_artifacts
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.loaded import loaded_artifacts
from orchestrator.artifacts.required import configured_method
from orchestrator.artifacts.text_limits import text_limit
from orchestrator.catalog import load_catalog
from orchestrator.catalog.edit import replace_section
from orchestrator.catalog.location import display_path
from orchestrator.catalog.weights import fetch_weights
from orchestrator.cells.evaluation import evaluate
from orchestrator.cells.task import make_task
from orchestrator.core.settings import RunSettings
from orchestrator.core.text_limit import TextLimit
from orchestrator.models.adoption import adopt_checkpoints
from orchestrator.models.export import COMPARED_IMAGES, compare_saved
from orchestrator.store.results import Evaluation
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.errors import UserError
from orchestrator.util.units import pluralize

if TYPE_CHECKING:
    from bolt.task.task import Task

KEPT = "what is finished is kept: make room or name another folder, and run the command again"

TINY_WARNING = "tiny-clip was trained on drawings only: this shows that the command works, not what CLIP can do"

_WITHOUT_WEIGHTS = (
    "; then --backbone NAME --catalog FILE\n"
    "  or try the command with --backbone tiny-clip, which needs no network; it knows drawings only, so its accuracy "
    "says nothing about CLIP"
)


def adapt_folder(
    request: Request,
    say: Callable[[str], None],
    status: Callable[[str], None],
    show_decoding: Callable[[], AbstractContextManager[Callable[[int, int], None]]],
) -> Adaptation:
    """Check the images, choose a method on held-out folds, adapt it to all images, save the model, and test it.

    Args:
        say, status: print a line; show what is being done.
        show_decoding: a context that shows the progress of decoding.

    Raises ``UserError`` for anything the user can put right, before long work where that is possible.
    """
    started = time.perf_counter()
    catalog = load_catalog(request.catalog_files)
    check_request(request, catalog)
    texts = candidate_texts(request.backbone, request.methods, with_sources=request.sources is not None)
    entry = catalog.backbone(request.backbone)
    fetch_weights(entry, status, where="--backbone", instead=_WITHOUT_WEIGHTS)
    with writing(f"the working folder {request.work}", "--store", KEPT):
        request.work.mkdir(parents=True, exist_ok=True)
    with show_decoding() as advance, writing(f"the working folder {request.work}", "--store", KEPT):
        images = prepare_images(
            request.folder, request.work, request.catalog_files, request.data_root, request.images, advance
        )
    test = pluralize(images.entry.sizes.test, "test image") if images.has_test else "no test images"
    say(f"{len(images.class_names)} classes, {pluralize(sum(images.per_class), 'image')} to learn from, {test}")
    for note in images.notes:
        say(f"  note: {note}")
    if entry.name == TINY:
        say(f"  note: {TINY_WARNING}")
    settings = RunSettings(
        request.store_url, str(images.data_root), request.threads, request.device, tuple(map(str, images.catalog_files))
    )
    pool = _source_pool(request, images, say)
    trials = make_trials(images, request.work, entry.name, pool, texts, settings, request.minutes, say, status)
    limit = _text_limit(trials)
    if limit.shared:
        say(f"  note: {limit.sentence}")
        say(f"    equal: {limit.shared_words}")
    say(
        f"candidates, on {trials.folds} held-out folds:"
        if trials.folds
        else "a class has one image: nothing is held out"
    )
    trials.run()
    measured = [trial for trial in trials.candidates if trial.correct_N is not None]
    if trials.folds and not measured:
        raise UserError(
            "no candidate could be measured", where="--minutes", hint="give more minutes or other --methods"
        )
    choice = _choose(trials)
    model, final_seconds, evaluation = _finish(trials, choice, request, status)
    done = Adaptation(
        request, images, tuple(trials.candidates), trials.folds, choice, limit, evaluation,
        _per_class(trials, choice), final_seconds, time.perf_counter() - started,
    )  # fmt: skip
    _save(model, trials, done)
    return done


def _source_pool(request: Request, images: OwnImages, say: Callable[[str], None]) -> Mapping[str, object] | None:
    """The pool of sources as in a grid file. Checkpoints of a folder are adopted into the working folder's catalog."""
    if request.sources is None:
        return None
    folder, own_file = Path(request.sources), images.catalog_files[-1]
    if not folder.is_dir():
        return {"rule": "leave_one_out", "domain": request.sources}
    replace_section(own_file, "checkpoints", {})  # those of an earlier run
    try:
        files = [str(path) for path in checkpoint_paths(folder).values()]
        adopt_checkpoints(files, request.backbone, None, images.catalog_files, say=say)
    except FileNotFoundError as error:
        raise UserError(str(error), where="--sources") from None
    except UserError as error:
        unnamed = "--dataset" in error.hint
        hint = "name each file after a dataset of the catalog; `data list` shows them" if unnamed else error.hint
        raise UserError(error.what, where=f"--sources {error.where}".rstrip(), hint=hint) from None
    catalog = load_catalog(images.catalog_files)
    own = [
        key
        for section, key in catalog.files
        if (section, catalog.files[section, key]) == ("checkpoints", display_path(own_file))
    ]
    return {"rule": "leave_one_out", "datasets": [key.partition("/")[2] for key in own]}


def _text_limit(trials: Trials) -> TextLimit:
    """The highest accuracy that the text head's distinct class vectors allow on images like those to learn from."""
    cell, images = trials.candidates[0].cell, trials.images
    size = trials.catalog.backbone(cell.backbone.name).image_size
    head = Head(cell.backbone, cell.dataset, size)
    trials.build([*head.inputs, head], "class words")
    head_CD = loaded_artifacts(trials.settings).get(head).numpy(force=True)
    return text_limit(cell.backbone.name, cell.dataset.name, images.class_names, head_CD, images.per_class)


def _choose(trials: Trials) -> Choice:
    """The best measured candidate; the first one that was not left out if nothing could be held out."""
    measured = [number for number, trial in enumerate(trials.candidates) if trial.correct_N is not None]
    if not measured:
        return Choice(next((n for n, trial in enumerate(trials.candidates) if not trial.left_out), 0))
    found = choose(np.stack([trials.candidates[n].correct_N for n in measured]))  # type: ignore[misc]
    return replace(found, best=measured[found.best], level=tuple(measured[n] for n in found.level))


def _finish(
    trials: Trials, choice: Choice, request: Request, status: Callable[[str], None]
) -> tuple[Model, float, Evaluation | None]:
    """Adapt the chosen candidate to all images and, after that, score it on the test images if there are any."""
    chosen, images = trials.candidates[choice.best], trials.images
    cell, loaded = chosen.cell, loaded_artifacts(trials.settings)
    status(f"{chosen.text}: adapting to all images")
    started = time.perf_counter()
    method, settings = configured_method(cell)
    with threads_for(parse_candidate(chosen.text), sum(images.per_class)):
        adapted = method.adapt(make_task(cell, loaded), settings)
    seconds = time.perf_counter() - started
    evaluation = None
    if images.has_test:
        trials.build(test_artifacts(trials, cell), "test images")
        evaluation = evaluate(cell, cell.dataset, adapted, loaded).evaluation
    notes = {
        "method": chosen.text,
        "dataset": cell.dataset.name,
        "dataset_digest": cell.dataset.digest,
        "images": sum(images.per_class),
        "chosen_among": [trial.text for trial in trials.candidates if trial.correct_N is not None],
        "expected_accuracy": choice.expected,
        "expected_interval": [choice.low, choice.high],
        "accuracy": evaluation.accuracy if evaluation else None,
        "data_licence": images.entry.licence,
        "sources": {source.dataset: source.digest for source in cell.sources},
    }
    backbone = loaded.backbone(cell.backbone)
    rotation = images.entry.exif_rotation
    return (
        Model.from_adapted(backbone, adapted, images.class_names, exif_rotation=rotation, notes=notes),
        seconds,
        evaluation,
    )


def _per_class(trials: Trials, choice: Choice) -> tuple[tuple[str, int, int], ...]:
    """Class, correct held-out images of the chosen candidate, and all images; empty if nothing was held out."""
    chosen = trials.candidates[choice.best]
    if chosen.correct_N is None:
        return ()
    labels_N = make_task(chosen.cell, loaded_artifacts(trials.settings)).support.labels_N.cpu().numpy()
    return tuple(
        (name, int(chosen.correct_N[labels_N == label].sum()), int((labels_N == label).sum()))
        for label, name in enumerate(trials.images.class_names)
    )


def _save(model: Model, trials: Trials, done: Adaptation) -> None:
    """Write the page, then the model; read the model back and compare logits. Raises ``UserError`` if they differ."""
    from orchestrator.adapt.page import adapt_page

    request, loaded = done.request, loaded_artifacts(trials.settings)
    cell = done.chosen.cell
    task: Task = make_task(cell, loaded)
    pixels = task.support.pixels(0, torch.arange(min(COMPARED_IMAGES, len(task.support))))
    staged = request.model.with_name(f".{request.model.name}.checking")
    with writing(f"the model {request.model}", "-o", KEPT):
        request.page.parent.mkdir(parents=True, exist_ok=True)
        with replacing(request.page) as temporary:
            temporary.write_text(adapt_page(done), encoding="utf-8")
        shutil.rmtree(staged, ignore_errors=True)
        model.save(staged, request.form, with_basis=True)
    compare_saved(model, staged, cell, loaded, pixels)
    with writing(f"the model {request.model}", "-o", KEPT):
        staged.rename(request.model)
