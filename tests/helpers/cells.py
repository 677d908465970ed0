"""Sample cells and results for tests of the engine, and runners that stand in for real cells."""

import json
import os
import sys
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from bolt.protocol import STRICT
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, MethodRef, SourceRef
from orchestrator.core.events import CellEvent, FailureKind
from orchestrator.core.settings import RunSettings
from orchestrator.store.predictions import StoredPredictions, predictions_content, predictions_file
from orchestrator.store.results import Evaluation, Manifest, Result, Timings

HERE = "tests.helpers.cells"
BACKBONE = BackboneRef("tiny", "00000000")
SOURCES = (SourceRef("letters", "aaaaaaaa"), SourceRef("cases", "bbbbbbbb"))


def cell(
    number: int = 0, *, method: str = "bolt", dataset: str = "digits", shots: int = 4, backbone: str = "tiny"
) -> Cell:
    """Return a cell whose seed is ``number``."""
    target = DatasetRef(dataset, "cccccccc")
    return Cell(
        track="fewshot",
        protocol=STRICT,
        backbone=replace(BACKBONE, name=backbone),
        domain="glyphs",
        dataset=target,
        evaluate_on=(target,),
        sources_rule="leave_one_out",
        sources=SOURCES,
        shots=shots,
        method=MethodRef(method, 1, (("learning_rate", 0.001), ("top_k", 8))),
        seed=number,
    )


def result(of: Cell, *, accuracy: float = 62.5, epochs: int = 3) -> Result:
    """Return the result of a finished cell, with every field filled."""
    evaluation = Evaluation(of.dataset.name, accuracy, int(accuracy * 2), 200, 50.0, ((60, 100), (65, 100)), None, None)
    manifest = Manifest("0123abc", False, {"python": "3.11"}, "cpu", 1, (), "2026-01-01T00:00:00+00:00")
    curve = tuple(1.0 / (1 + epoch) for epoch in range(epochs))
    return Result(of, (evaluation,), 392, Timings(0.1, 2.0, 0.3), 120.0, 40, manifest, {"train_loss": curve}, {})


def sealed(fields: dict[str, Any]) -> str:
    """Return fields as the text of a result file with a correct checksum, as a faulty program could write it."""
    body = json.dumps({key: value for key, value in fields.items() if key != "sha256"}, indent=1).removesuffix("\n}")
    return f'{body},\n "sha256": "{sha256(body.encode()).hexdigest()}"\n}}'


def predictions(of: Result, *, seed: int = 0) -> tuple[Result, bytes]:
    """Draw predictions with a result's counts; return the result that describes their file, and the file's content."""
    rng = np.random.default_rng(seed)
    splits = []
    for scored in of.evaluations:
        labels = np.repeat(np.arange(len(scored.per_class)), [total for _, total in scored.per_class])
        predicted = (labels + 1) % max(len(scored.per_class), 2)
        for label, (hits, _) in enumerate(scored.per_class):
            predicted[rng.permutation(np.flatnonzero(labels == label))[:hits]] = label
        probability = rng.integers(100, 256, len(labels))
        splits.append(
            StoredPredictions(
                scored.dataset, labels.astype(np.uint16), predicted.astype(np.uint16), probability.astype(np.uint8)
            )
        )
    content = predictions_content(splits)
    return replace(of, predictions=predictions_file(content)), content


def _note(cell: Cell, settings: RunSettings, text: str) -> None:
    """Append a line to the cell's file in the store's folder, so that a test can count how often the cell was run."""
    with open(Path(settings.store_url, cell.id), "a") as stream:
        stream.write(f"{text} {os.getpid()} {time.time()}\n")


def write_nothing(cell: Cell, settings: RunSettings) -> CellEvent:
    """Finish at once and leave a note."""
    _note(cell, settings, "finished")
    return CellEvent(cell, "finished")


def nap(cell: Cell, settings: RunSettings) -> CellEvent:
    """Take 0.4 s; take no time once the store's folder has a file named ``enough``."""
    _note(cell, settings, "begun")
    if not Path(settings.store_url, "enough").exists():
        time.sleep(0.4)
    _note(cell, settings, "finished")
    return CellEvent(cell, "finished", seconds=0.4)


def nap_or_hang_once(cell: Cell, settings: RunSettings) -> CellEvent:
    """Do as ``nap`` does, but hang in the first attempt of seed 6."""
    first = not Path(settings.store_url, cell.id).exists()
    return sleep_long(cell, settings) if cell.seed == 6 and first else nap(cell, settings)


def note_visible_gpus(cell: Cell, settings: RunSettings) -> CellEvent:
    """Note the GPUs that this process sees."""
    _note(cell, settings, f"devices={os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}")
    return CellEvent(cell, "finished")


def sleep_long(cell: Cell, settings: RunSettings) -> CellEvent:
    """Take longer than any test waits."""
    _note(cell, settings, "begun")
    time.sleep(600)
    _note(cell, settings, "finished")
    return CellEvent(cell, "finished", seconds=600.0)


def misbehave(cell: Cell, settings: RunSettings) -> CellEvent:
    """Return a failure for seeds 1, 5 and 9, raise errors for seeds 7 and 99, and end the worker for seed 3."""
    _note(cell, settings, "tried")
    if cell.seed == 3:
        os._exit(1)
    if cell.seed == 7:
        raise OSError("no space left on device")
    if cell.seed == 99:
        sys.exit("usage: as argparse says")
    if cell.seed % 4 == 1:
        return CellEvent(cell, "failed", error="ValueError: one too many")
    return CellEvent(cell, "finished")


def need_memory(cell: Cell, settings: RunSettings) -> CellEvent:
    """Run out of memory, depending on the seed.

    Seed 0 needs a whole GPU, and seed 1 more than one. Seed 2 runs out of main memory in its first attempt, and seed 3
    in every attempt. Seed 4 never runs out.
    """
    _note(cell, settings, f"share={settings.gpu_share:g}")
    tries = len(Path(settings.store_url, cell.id).read_text().splitlines())
    kind: FailureKind = ""
    if cell.seed == 1 or (cell.seed == 0 and settings.gpu_share < 1):
        kind = "gpu_memory"
    elif cell.seed == 3 or (cell.seed == 2 and tries == 1):
        kind = "main_memory"
    if kind:
        return CellEvent(cell, "failed", error="out of memory", problem=kind, traceback="Traceback", recorded=False)
    return CellEvent(cell, "finished", gpu_mib=100.0)


def hang_if_seed_is_one(cell: Cell, settings: RunSettings) -> CellEvent:
    """Hang for seed 1, and finish at once for other seeds."""
    return sleep_long(cell, settings) if cell.seed == 1 else write_nothing(cell, settings)


def fail_on_a_full_disk(cell: Cell, settings: RunSettings) -> CellEvent:
    """Fail for a full disk from seed 2 on."""
    if cell.seed < 2:
        return write_nothing(cell, settings)
    return CellEvent(cell, "failed", error="the disk is full", problem="store", recorded=False)
