"""From a folder of photographs to a model and a page: the steps of ``adapt``, in order.

Everything that takes long is in the store when it is finished, so the same command continues after a kill.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from bolt.model.checkpoint_sources import checkpoint_paths
from bolt.model.model import Model
from bolt.task.task import Adapted, Task
from orchestrator.adapt.adaptation import Adaptation, adapt_card, adapt_page, summary_lines
from orchestrator.adapt.choice import Choice, choose
from orchestrator.adapt.held_out_fold import threads_for
from orchestrator.adapt.own_images import OwnImages, own_key, prepare_images
from orchestrator.adapt.request import Request, check_request, refuse_existing
from orchestrator.adapt.trials import TINY, Trial, Trials, make_trials, read_candidates
from orchestrator.artifacts.head import EqualClasses, Head, equal_classes_of
from orchestrator.artifacts.load_backbone import fetch_weights
from orchestrator.catalog import load_catalog
from orchestrator.catalog.edit import write_entries
from orchestrator.catalog.location import display_path
from orchestrator.cells.evaluation import evaluate
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.manifest import make_manifest
from orchestrator.cells.splits import evaluation_split
from orchestrator.cells.task import make_task
from orchestrator.datasets.progress import show_progress
from orchestrator.models.adoption import adopt_checkpoints
from orchestrator.models.export import COMPARED_IMAGES, compare_saved
from orchestrator.models.model_card import write_card
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError
from orchestrator.util.locks import LockHeld, file_lock
from orchestrator.util.units import pluralize

KEPT = "what is finished is kept: make room or name another folder, and run the command again"

TINY_WARNING = "tiny-clip was trained on drawings only: this shows that the command works, not what CLIP can do"

_WITHOUT_WEIGHTS = (
    "; then --backbone NAME --catalog FILE\n"
    "  or try the command with --backbone tiny-clip, which needs no network; it knows drawings only, so its accuracy "
    "says nothing about CLIP"
)


def adapt_folder(request: Request, console: Console) -> Adaptation:
    """Check the images, choose a method on held-out folds, adapt it to all images, save the model, and test it.

    The console shows what is being done and what came out. A second process waits until the first has ended.

    Raises ``UserError`` for anything the user can put right, before long work where that is possible.
    """
    check_request(request, load_catalog(request.settings.catalog_files))
    with _only_process(request, console):
        return _adapt(request, console)


@contextmanager
def _only_process(request: Request, console: Console) -> Iterator[None]:
    """Hold the working folder, which two processes must not write at once. Raises ``UserError`` as for ``-o``."""
    lock = request.work.with_name(f"{request.work.name}.lock")
    with ExitStack() as stack:
        with writing(f"the working folder {request.work}", "--store", KEPT):
            request.work.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(file_lock(lock))
            except LockHeld as process:
                print_line(
                    f"process {process} adapts {request.folder.name} in this store; waiting for its end", console
                )
                stack.enter_context(file_lock(lock, wait=True))
        refuse_existing(request.model)  # the other process may have written it
        yield


def _adapt(request: Request, console: Console) -> Adaptation:
    started = time.perf_counter()
    say = partial(print_line, console=console)
    catalog = load_catalog(request.settings.catalog_files)
    candidates = read_candidates(request)
    fetch_weights(catalog.backbone(request.backbone), console, where="--backbone", instead=_WITHOUT_WEIGHTS)
    with (
        writing(f"the working folder {request.work}", "--store", KEPT),
        show_progress(f"decoding {own_key(request.folder)}", console) as advance,
    ):
        images = prepare_images(request.folder, request.work, request.settings, request.images, advance)
    test = pluralize(images.entry.sizes.test, "test image") if images.has_test else "no test images"
    say(f"{len(images.class_names)} classes, {pluralize(sum(images.per_class), 'image')} to learn from, {test}")
    for note in (*images.notes, *([TINY_WARNING] if request.backbone == TINY else [])):
        say(f"  note: {note}")
    trials = make_trials(request, images, candidates, _source_pool(request, images, console), console)
    equal_classes = _equal_classes(trials)
    if equal_classes:
        say(f"  note: {equal_classes.sentence}")
    if trials.folds:
        say(f"candidates, on {trials.folds} held-out folds:")
    else:
        alone = images.class_names[images.per_class.index(1)]
        say(f"class {alone!r} has one image, so nothing can be held out: the first candidate is taken")
    trials.run()
    choice = _choose(trials)
    chosen = trials.candidates[choice.best]

    began = time.perf_counter()
    with console.status(f"{chosen.text}: adapting to all images"):
        inputs = CellInputs(chosen.cell, trials.loaded)
        task = make_task(inputs)
        with threads_for(chosen.candidate, len(task.support)):
            adapted = inputs.method.adapt(task, inputs.settings)
    final_seconds = time.perf_counter() - began
    evaluation = None
    if images.has_test:
        trials.build(trials.test_artifacts(chosen), "test images")
        with console.status("scoring the test images"):
            evaluation = evaluate(inputs, evaluation_split(inputs, chosen.cell.dataset), adapted).evaluation
    done = Adaptation(
        request, images, tuple(trials.candidates), trials.folds, choice, equal_classes, evaluation,
        _per_class(chosen, task, images), final_seconds, time.perf_counter() - started,
    )  # fmt: skip
    with console.status(f"writing {request.model}"):
        _save(adapted, task, trials, done)
    for line in summary_lines(done):
        say(line)
    return done


def _source_pool(request: Request, images: OwnImages, console: Console) -> Mapping[str, object] | None:
    """Return the pool of sources as in a grid file.

    Checkpoints of a folder are adopted into the working folder's catalog.
    """
    if request.sources is None:
        return None
    folder, files = Path(request.sources), [Path(file) for file in images.settings.catalog_files]
    if not folder.is_dir():
        return {"rule": "leave_one_out", "domain": request.sources}
    write_entries(files[-1], {"checkpoints": {}}, replace=True)  # those of an earlier run
    try:
        checkpoints = [str(path) for path in checkpoint_paths(folder).values()]
        adopt_checkpoints(checkpoints, request.backbone, None, files, say=partial(print_line, console=console))
    except FileNotFoundError as error:
        raise UserError(str(error), where="--sources") from None
    except UserError as error:
        unnamed = "--dataset" in error.hint
        hint = "name each file after a dataset of the catalog; `data list` shows them" if unnamed else error.hint
        raise UserError(error.what, where=f"--sources {error.where}".rstrip(), hint=hint) from None
    own_file = display_path(files[-1])
    adopted = [
        key.partition("/")[2]
        for (section, key), file in load_catalog(files).files.items()
        if section == "checkpoints" and file == own_file
    ]
    return {"rule": "leave_one_out", "datasets": adopted}


def _equal_classes(trials: Trials) -> EqualClasses | None:
    """Build the text head; return the classes that it cannot tell apart, if any."""
    cell = trials.candidates[0].cell
    head = Head(cell.backbone, cell.dataset, trials.loaded.image_size(cell.backbone))
    trials.build([*head.inputs, head], "class words")
    return equal_classes_of(trials.loaded.store, head)


def _choose(trials: Trials) -> Choice:
    """Return the best measured candidate; the first one that was not left out if nothing could be held out."""
    if not trials.folds:
        return Choice(next((n for n, trial in enumerate(trials.candidates) if not trial.left_out), 0))
    correct = {n: trial.correct_N for n, trial in enumerate(trials.candidates) if trial.correct_N is not None}
    if not correct:
        raise UserError(
            "no candidate could be measured", where="--minutes", hint="give more minutes or other --methods"
        )
    found, measured = choose(np.stack([*correct.values()])), [*correct]
    return replace(found, best=measured[found.best], level=tuple(measured[n] for n in found.level))


def _per_class(chosen: Trial, task: Task, images: OwnImages) -> tuple[tuple[str, int, int], ...]:
    """Class, correct held-out images of the chosen candidate, and all images; empty if nothing was held out."""
    if chosen.correct_N is None:
        return ()
    labels_N = task.support.labels_N.numpy(force=True)
    return tuple(
        (name, int(chosen.correct_N[labels_N == label].sum()), int((labels_N == label).sum()))
        for label, name in enumerate(images.class_names)
    )


def _save(adapted: Adapted, task: Task, trials: Trials, done: Adaptation) -> None:
    """Write the page, then the model; read the model back and compare logits. Raises ``UserError`` if they differ."""
    request, images, cell, loaded = done.request, done.images, done.chosen.cell, trials.loaded
    notes = {
        "method": done.chosen.text,
        "dataset": cell.dataset.name,
        "dataset_digest": cell.dataset.digest,
        "images": sum(images.per_class),
        "chosen_among": [trial.text for trial in done.trials if trial.is_measured],
        "expected_accuracy": done.choice.expected,
        "expected_interval": [done.choice.low, done.choice.high],
        "accuracy": done.evaluation.accuracy if done.evaluation else None,
        "data_licence": images.entry.licence,
        "sources": {source.dataset: source.digest for source in cell.sources},
    }
    model = Model.from_adapted(loaded.backbone(cell.backbone), adapted, images.class_names, notes=notes)
    staged = request.model.with_name(f".{request.model.name}.checking")
    with writing(f"the model {request.model}", "-o", KEPT):
        request.page.parent.mkdir(parents=True, exist_ok=True)
        with replacing(request.page) as temporary:
            temporary.write_text(adapt_page(done), encoding="utf-8")
        shutil.rmtree(staged, ignore_errors=True)
        model.save(staged, request.form, with_basis=True)
        card = adapt_card(done, adapted.trainable_parameters, make_manifest(loaded, ()))
        write_card(card, loaded.catalog, staged, request.form)
    pixels = task.support.pixels(0, torch.arange(min(COMPARED_IMAGES, len(task.support))))
    compare_saved(model, staged, cell, loaded, pixels)
    with writing(f"the model {request.model}", "-o", KEPT):
        staged.rename(request.model)
