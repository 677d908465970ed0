"""Made-up results for every cell of a grid, so that tests and benchmarks have reports of the size of ``full``.

An accuracy is the paper's, if the paper prints one; otherwise it is the frozen backbone's plus a gain. The noise has
two parts: one for each (dataset, seed), which all methods share because they share supports, and one for each cell.
Equal arguments give equal results.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bolt.seeds import numpy_generator
from orchestrator.analysis.rows import SourceRow
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell
from orchestrator.grid import load_grid
from orchestrator.report.analysis import GridResults
from orchestrator.report.grid_report import published_of
from orchestrator.report.paper.published import published_accuracy, published_datasets
from orchestrator.store.results import Evaluation, Failure, Manifest, Result, Timings
from orchestrator.tracks import stored_track

EPOCHS = 20
_GAIN = {"full_finetune": 0.8, "lora": 0.7, "bolt": 1.0, "bolt_pooled": 0.45, "meta_init": -1.5, "layer_norm": 0.5}
"""Gain as a fraction of BOLT's gain, for methods without a printed accuracy."""
_PARAMETERS = {
    "bolt": 9_408, "atlas": 2_528, "lora": 884_736, "linear_probe": 51_300, "lp_plus_plus": 51_400,
    "layer_norm": 39_936, "full_finetune": 87_849_216, "meta_init": 87_849_216,
}  # fmt: skip
_SECONDS = {"bolt": 40.0, "atlas": 90.0, "lora": 60.0, "full_finetune": 70.0, "meta_init": 70.0, "layer_norm": 30.0}
_PARTIAL = frozenset({"imagenet_a", "imagenet_r"})
"""Test sets that have 200 of the target's 1,000 classes."""


def everything(
    name: str = "full", *, only: Sequence[str] = (), failing: int = 0, missing: int = 0, **changes: Any
) -> GridResults:
    """Return the grid ``name``, filtered as ``--only`` does, with a result of each cell.

    Args:
        failing: every ``failing``-th cell has failed; 0 for none.
        missing: every ``missing``-th cell was not run; 0 for none.
        changes: other arguments of ``GridResults``.
    """
    catalog = load_catalog()
    grid = load_grid(name, catalog, only=only)
    results, failures = [], []
    for i, cell in enumerate(grid.cells, start=1):
        if failing and i % failing == 0:
            failures.append(Failure(cell.id, "RuntimeError: drawn to fail", "Traceback: none", "", 1, _WHEN))
        elif not missing or i % missing:
            results.append(drawn(cell, grid.label(cell), catalog))
    pairs = {(source.dataset, plan.backbone.name) for source, plan in grid.sources.items()}
    arguments: dict[str, Any] = {
        "name": grid.name, "title": grid.title, "description": grid.description, "results": results,
        "failures": failures, "planned": grid.cells, "label_of": grid.label, "published_of": published_of(catalog),
        "names_of": catalog.published_names, "sources": _sources(sorted(pairs), catalog),
    }  # fmt: skip
    return GridResults(**{**arguments, **changes})


_WHEN = "2026-01-02T03:04:05+00:00"
_MANIFEST = Manifest("c0ffee1234567890", False, {"python": "3.11.2", "torch": "2.8.0"}, "drawn", 1, (), _WHEN)


def drawn(cell: Cell, label: str, catalog: Catalog) -> Result:
    evaluations = tuple(_evaluation(cell, label, ref.name, catalog) for ref in cell.evaluate_on)
    evaluations += tuple(replace(evaluations[0], dataset=name) for name in stored_track(cell.track).class_groups)
    draw = numpy_generator("synthetic cost", 0, cell.id)
    size = {"vit-b-32": 1.0, "vit-b-16": 1.6, "vit-l-14": 4.5}.get(cell.backbone.name, 1.0)
    seconds = _SECONDS.get(cell.method.name, 0.5) * size * max(cell.shots, 1) ** 0.7 * float(draw.uniform(0.9, 1.3))
    trains = _PARAMETERS.get(cell.method.name, 0)
    curves: dict[str, tuple[float, ...]] = {}
    if trains:
        epochs = range(1, EPOCHS + 1)
        curves["train_loss"] = tuple(round(0.3 + 2.0 * math.exp(-epoch / 5), 6) for epoch in epochs)
        curves["learning_rate"] = tuple(round(0.0005 * (1 + math.cos(math.pi * e / EPOCHS)), 9) for e in epochs)
    if cell.track == "meta" and cell.shots:
        start = 0.35 if cell.method.name == "meta_init" else 0.9
        last = evaluations[0].accuracy
        climb = [start + (1 - start) * (1 - math.exp(-epoch / 4)) for epoch in range(1, EPOCHS)]
        curves["accuracy"] = (*(round(last * share, 4) for share in climb), last)
    details: dict[str, float | int | str] = {}
    if "bolt" in cell.method.name:
        details["alpha"] = float(draw.choice([1, 3, 5, 7, 10]))
    if cell.protocol.short_classes == "take_all" and cell.shots > 10:
        details["short_classes"] = catalog.dataset(cell.dataset.name).classes
    return Result(
        cell=cell,
        evaluations=evaluations,
        trainable_parameters=trains * (2 if size > 2 else 1),
        timings=Timings(0.4, round(seconds, 3), round(2.0 * size, 3)),
        peak_memory_mib=round(800 * size + trains / 2**16, 1),
        support_size=cell.shots * catalog.dataset(cell.dataset.name).classes,
        manifest=_MANIFEST,
        curves=curves,
        details=details,
    )


def _evaluation(cell: Cell, label: str, dataset: str, catalog: Catalog) -> Evaluation:
    """Return an evaluation whose counts per class add up to an accuracy near the expected one."""
    entry = catalog.dataset(dataset)
    zero = _zero_shot(cell, dataset, catalog)
    mean = _expected(cell, label, dataset, catalog, zero)
    shared = numpy_generator("synthetic support", 0, dataset, cell.shots, cell.seed).normal()
    own = numpy_generator("synthetic cell", 0, cell.id, dataset).normal()
    noise = (1.2 * shared + 0.5 * own) / math.sqrt(max(cell.shots, 1)) if cell.shots or cell.seed else 0.0
    total, classes = entry.sizes.test, 200 if dataset in _PARTIAL else entry.classes
    correct = zero if cell.method.name == "zero_shot" else min(99.9, max(0.5, mean + noise))
    correct, frozen = round(correct * total / 100), round(zero * total / 100)
    sizes = np.full(classes, total // classes)
    sizes[: total % classes] += 1
    draw = numpy_generator("synthetic classes", 0, cell.id, dataset)
    hits = draw.multivariate_hypergeometric(sizes, correct, method="marginals")
    per_class = [(int(c), int(n)) for c, n in zip(hits, sizes, strict=True)] + [(0, 0)] * (entry.classes - classes)
    of_all = (100 * correct / total, 100 * frozen / total)
    among_own = (accuracy + 0.4 * (100 - accuracy) if dataset in _PARTIAL else None for accuracy in of_all)
    return Evaluation(dataset, of_all[0], correct, total, of_all[1], tuple(per_class), *among_own)


def _zero_shot(cell: Cell, dataset: str, catalog: Catalog) -> float:
    """Return the frozen backbone's accuracy: the printed one, else one close to a printed one-shot linear probe."""
    places = (("tta", 0), ("ood", 16))
    found = next((x for place in places if (x := _printed(cell, *place, "zero_shot", dataset, catalog))), None)
    probe = _printed(cell, "fewshot", 1, "linear_probe", dataset, catalog)
    return found or (probe - 0.3 if probe else 30.0 + _fraction("zero-shot", cell.backbone.name, dataset) * 50.0)


def _expected(cell: Cell, label: str, dataset: str, catalog: Catalog, zero: float) -> float:
    method, track = cell.method.name, "fewshot" if cell.track == "meta" else cell.track
    mean = _printed(cell, track, cell.shots, method, dataset, catalog)
    if mean is None:
        best = _printed(cell, track, cell.shots, "bolt", dataset, catalog)
        gain = best - zero if best is not None else min(30.0, (100 - zero) * 0.15 * (1 + math.log2(1 + cell.shots)))
        mean = zero + _GAIN.get(method, 0.3) * gain
    if label != method:  # a variant: up to four points worse, half a point better
        mean += 0.5 - 4.5 * _fraction("variant", label)
    return mean


def _printed(cell: Cell, track: str, shots: int, method: str, dataset: str, catalog: Catalog) -> float | None:
    backbone, entry = catalog.backbone(cell.backbone.name), catalog.dataset(dataset)
    return published_accuracy(track, backbone.published_as, entry.domain, shots, method, entry.published_as)


def _fraction(*axes: str) -> float:
    """Return a number in [0, 1) that depends on the arguments alone."""
    return int.from_bytes(hashlib.sha256("\x1f".join(axes).encode()).digest()[:4], "big") / 2**32


def _sources(pairs: Sequence[tuple[str, str]], catalog: Catalog) -> list[SourceRow]:
    rows = []
    printed = {(row.backbone, row.dataset): row.finetuned_accuracy for row in published_datasets()}
    for dataset, backbone in pairs:
        entry = catalog.dataset(dataset)
        tuned = printed.get((str(catalog.backbone(backbone).published_as), str(entry.published_as)), 90.0)
        rows.append(SourceRow(backbone, entry.domain, dataset, tuned * 0.7, tuned - 0.5, entry.sizes.test))
    return rows
