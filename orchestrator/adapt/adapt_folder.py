"""From a folder of photographs to a model and a page: the recipe of ``adapt``.

Each step takes the value of the step before. Everything that takes long is in the store when it is finished, so the
same command continues after a kill.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch
from rich.console import Console

from bolt.methods.common.deep_prompts import DeepPromptSettings
from bolt.model.model import Model
from bolt.model.threshold import NOTE, held_out_note
from bolt.task.task import Adapted, Task
from orchestrator.adapt.adaptation import Adaptation, adapt_card, adapt_page, summary_lines
from orchestrator.adapt.candidates import TINY, plan_candidates, read_candidates
from orchestrator.adapt.choice import Choice, choose
from orchestrator.adapt.held_out_fold import threads_for
from orchestrator.adapt.own_images import as_given, image_parts, prepare_images
from orchestrator.adapt.request import Request, check_request, refuse_existing
from orchestrator.adapt.suspects import find_suspects
from orchestrator.adapt.trials import build, measure_candidates
from orchestrator.artifacts.head import Head, equal_classes_of
from orchestrator.artifacts.load_backbone import fetch_weights
from orchestrator.artifacts.spec import ArtifactCache, artifact_cache, with_inputs
from orchestrator.catalog import load_catalog
from orchestrator.cells.evaluation import evaluate
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.manifest import make_manifest
from orchestrator.cells.splits import evaluation_split
from orchestrator.cells.task import make_task
from orchestrator.datasets.progress import show_progress
from orchestrator.models.export import COMPARED_IMAGES, check_form, compare_saved
from orchestrator.models.model_card import write_card
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.console import print_line
from orchestrator.util.locks import LockHeld, file_lock
from orchestrator.util.units import first_lines, pluralize

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
    started, say = time.perf_counter(), partial(print_line, console=console)
    train, test = image_parts(request.folder)
    catalog = load_catalog(request.settings.catalog_files)
    check_request(request, catalog, [train, *([test] if test else [])])
    backbone = catalog.backbone(request.backbone)
    candidates = read_candidates(request, backbone)
    if not backbone.has_matrices:
        request = replace(request, form="adapter")  # the tower stays open_clip's own
    for each in candidates:
        learns_tokens = isinstance(each.settings, DeepPromptSettings)
        check_form(request.form, backbone, each.method.name if learns_tokens else None)
    fetch_weights(backbone, console, where="--backbone", instead=_WITHOUT_WEIGHTS)
    with _working_folder(request, say):
        writing_work = writing(f"the working folder {request.work}", "--store", KEPT)
        with writing_work, show_progress(f"decoding {request.name}", console) as advance:
            images = prepare_images(request, train, test, advance)
        tested = pluralize(images.entry.sizes.test, "test image") if images.has_test else "no test images"
        say(f"{len(images.class_names)} classes, {pluralize(images.total, 'image')} to learn from, {tested}")
        for note in (*images.notes, *([TINY_WARNING] if request.backbone == TINY else [])):
            say(f"  note: {first_lines(note)}")
        plan = plan_candidates(request, images, candidates, console)
        settings, loaded = images.settings, artifact_cache(images.settings)
        head = Head(plan.cells[0].backbone, plan.cells[0].dataset, loaded.image_size(plan.cells[0].backbone))
        build(with_inputs([head]), settings, console, "class words")
        equal_classes = equal_classes_of(loaded.store, head)
        if equal_classes:
            say(f"  note: {equal_classes.sentence}")

        if images.folds:
            say(f"candidates, on {images.folds} held-out folds:")
        else:
            alone = images.class_names[images.pictures.index(1)]
            say(f"class {alone!r} has one image, so nothing can be held out: the first candidate is taken")
        trials = measure_candidates(candidates, plan, images, request.minutes, console)
        if images.folds:
            choice = choose([trial.correct_of(images.repeated) for trial in trials], images.folds)
        else:
            choice = Choice(next((n for n, trial in enumerate(trials) if not trial.left_out), 0))
        chosen = trials[choice.best]

        began = time.perf_counter()
        with console.status(f"{chosen.text}: adapting to all images"):
            inputs = CellInputs(chosen.cell, loaded)
            task = make_task(inputs)
            with threads_for(chosen.candidate, len(task.support)):
                adapted = inputs.method.adapt(task, inputs.settings)
        final_seconds, evaluation = time.perf_counter() - began, None
        if images.has_test:
            build(with_inputs(inputs.artifacts.test_features), settings, console, "test images")
            with console.status("scoring the test images"):
                evaluation = evaluate(inputs, evaluation_split(inputs, chosen.cell.dataset), adapted).evaluation
        labels_N = task.support.labels_N.numpy(force=True)
        done = Adaptation(
            request, images, trials, choice, equal_classes, evaluation, labels_N, (), final_seconds,
            time.perf_counter() - started,
        )  # fmt: skip
        held_out = [trial.held_out for trial in trials if trial.held_out is not None]
        if held_out and not done.is_at_chance:  # a guess says nothing about a label
            suspects = find_suspects(held_out, labels_N, images.raw)
            suspects = [replace(each, origin=as_given(each.origin, request.folder, train, test)) for each in suspects]
            done = replace(done, suspects=suspects)
        with console.status(f"writing {request.model}"):
            _save(adapted, task, loaded, done)
    for line in summary_lines(done):
        say(line)
    return done


@contextmanager
def _working_folder(request: Request, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the working folder, which two processes must not write at once. Raises ``UserError`` as for ``-o``."""
    lock = request.work.with_name(f"{request.work.name}.lock")
    with ExitStack() as stack:
        with writing(f"the working folder {request.work}", "--store", KEPT):
            request.work.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(file_lock(lock))
            except LockHeld as process:
                say(f"process {process} works in {request.work}; waiting for its end")
                stack.enter_context(file_lock(lock, wait=True))
        refuse_existing(request.model)  # the other process may have written it
        yield


def _save(adapted: Adapted, task: Task, loaded: ArtifactCache, done: Adaptation) -> None:
    """Write the page, then the model; read the model back and compare logits. Raises ``UserError`` if they differ."""
    request, images, cell = done.request, done.images, done.chosen.cell
    held_out = done.chosen.held_out
    notes = {
        "method": done.chosen.text,
        "dataset": cell.dataset.name,
        "dataset_digest": cell.dataset.digest,
        "images": images.total,
        "chosen_among": [trial.text for trial in done.trials if trial.is_measured],
        "expected_accuracy": done.choice.expected,
        "expected_interval": [done.choice.low, done.choice.high],
        "chance_accuracy": done.chance,
        "better_than_chance": not done.is_at_chance,
        "accuracy": done.evaluation.accuracy if done.evaluation else None,
        NOTE: held_out_note(*held_out.scores_without(images.repeated)) if held_out else None,
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
        write_card(card, loaded.catalog, staged, request.form, model.tower.prompts is not None)
    pixels = task.support.pixels(0, torch.arange(min(COMPARED_IMAGES, len(task.support))))
    compare_saved(model, staged, cell, loaded, pixels)
    with writing(f"the model {request.model}", "-o", KEPT):
        staged.rename(request.model)
