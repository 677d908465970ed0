"""The recipe of ``adapt``: it makes a model and a page from a folder of photographs.

A step that takes long keeps its result in the store. So the same command continues after a kill.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from rich.console import Console

from bolt.model.model import Model
from bolt.task.task import Adapted, Support
from orchestrator.adapt.adaptation import Adaptation, adapt_card, adapt_page, model_notes, summary_lines
from orchestrator.adapt.choice import Choice, choose
from orchestrator.adapt.held_out_fold import threads_for
from orchestrator.adapt.own_images import prepare_images
from orchestrator.adapt.request import KEPT, TINY, Request, working_folder
from orchestrator.adapt.trials import measure_candidates, plan_trials
from orchestrator.artifacts.head import Head, cut_off_sentence, equal_classes_of
from orchestrator.artifacts.spec import artifact_cache, with_inputs
from orchestrator.cells.evaluation import evaluate_cell
from orchestrator.cells.inputs import CellInputs
from orchestrator.cells.manifest import make_manifest
from orchestrator.cells.task import make_task
from orchestrator.datasets.progress import show_progress
from orchestrator.execution.run import build_missing
from orchestrator.models.export import COMPARED_IMAGES, save_checked
from orchestrator.util.atomic_files import replace_text, writing
from orchestrator.util.console import print_line
from orchestrator.util.units import first_lines, pluralize

TINY_WARNING = "tiny-clip was trained on drawings only: this run shows that the command works, not what CLIP can do"


def adapt_folder(request: Request, console: Console) -> Adaptation:
    """Check the images, choose a method on held-out folds, adapt it to all images, test it, and save the model.

    The console shows each step and the outcome. A second process for the same folder waits until the first has ended.

    Raises ``UserError`` for a problem that the user can correct.
    """
    say = partial(print_line, console=console)
    with working_folder(request, say):
        writing_work = writing(f"the working folder {request.work}", "--store", KEPT)
        with writing_work, show_progress(f"decoding {request.name}", console) as advance:
            images = prepare_images(request, advance)
        tested = pluralize(images.entry.sizes.test, "test image") if images.has_test else "no test images"
        say(f"{len(images.raw.class_names)} classes, {pluralize(images.total, 'image')} to learn from, {tested}")
        for note in (*images.notes, *([TINY_WARNING] if request.backbone.name == TINY else [])):
            say(f"  note: {first_lines(note)}")

        trials = plan_trials(request, images, console)
        loaded = artifact_cache(images.settings)
        head = Head(trials[0].cell.backbone, trials[0].cell.dataset, request.backbone.input_size)
        build_missing(with_inputs([head]), loaded, console, "class words")
        # The candidates learn from the class words. This note comes before they run, so that the user can stop the
        # command and change the words.
        if equal_classes := equal_classes_of(loaded.store, head):
            say(f"  note: {equal_classes.sentence}")
        if cut := cut_off_sentence(loaded.store, head):
            say(f"  note: {cut}")
        if images.folds:
            say(f"candidates, on {images.folds} held-out folds:")
        else:
            alone = images.raw.class_names[images.pictures.index(1)]
            say(f"class {alone!r} has one picture only, so nothing can be held out: the first candidate is taken")
        trials = measure_candidates(trials, images, request.minutes, loaded, console)
        if images.folds:
            held_out = [trial.held_out for trial in trials]
            counted = [each and each.scores_without(images.repeated)[1] for each in held_out]
            positions_N = next(each.positions_N for each in held_out if each)
            series_N = images.series_of_each[positions_N[~np.isin(positions_N, images.repeated)]]
            choice = choose(counted, images.folds, series_N)
        else:
            choice = Choice(next(number for number, trial in enumerate(trials) if not trial.left_out))
        chosen = trials[choice.best]

        threads = threads_for(chosen.candidate, images.total)
        inputs = CellInputs(chosen.cell, loaded)
        if images.has_test:  # first, so that a run killed here has no training to repeat
            build_missing(with_inputs(inputs.artifacts.test_features), inputs.loaded, console, "test images")
        began = time.perf_counter()
        with console.status(f"{chosen.text}: adapting to all images"), threads:
            task = make_task(inputs)
            adapted = inputs.method.adapt(task, inputs.settings)
        final_seconds, evaluation = time.perf_counter() - began, None
        if images.has_test:
            with console.status("scoring the test images"):
                evaluation = evaluate_cell(inputs, adapted)[0].evaluation

        seconds = time.perf_counter() - request.started
        done = Adaptation(request, images, trials, choice, equal_classes, evaluation, final_seconds, seconds)
        with console.status(f"writing {request.model}"):
            _save(done, inputs, adapted, task.support)
    for line in summary_lines(done):
        say(line)
    return done


def _save(done: Adaptation, inputs: CellInputs, adapted: Adapted, support: Support) -> None:
    """Write the model and the page. Raises ``UserError`` if the model's logits differ after it is read back."""
    asked, names, reading = done.request, done.images.raw.class_names, done.images.entry.reading
    model = Model.from_adapted(inputs.backbone, adapted, names, notes=model_notes(done), reading=reading)
    card = adapt_card(done, adapted.trainable_parameters, make_manifest(inputs.loaded, ()))
    pixels = support.pixels(0, torch.arange(min(COMPARED_IMAGES, len(support))))
    save_checked(model, asked.model, asked.form, card, inputs, pixels, with_basis=True, hint=KEPT, beside=_page(done))


@contextmanager
def _page(done: Adaptation) -> Iterator[None]:
    """Write the page before the ``with`` block, which renames the folder of the finished model to its final name.

    The page is removed if there is no folder of this name after the block. The page comes first, because the command
    refuses to run if the model exists. So if the command is killed in between, it can be repeated and writes both.
    """
    page = done.request.page
    with writing(f"the page {page}", "-o", KEPT):
        replace_text(page, adapt_page(done))
    try:
        yield
    finally:
        if not done.request.model.exists():
            page.unlink()
