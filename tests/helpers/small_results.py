"""Small grids of made-up results for tests of the report: methods x eight datasets x k x seeds."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bolt.protocol import STRICT, Protocol
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, MethodRef, SourceRef
from orchestrator.report import terminal_summary, write_report
from orchestrator.report.analysis import GridResults
from orchestrator.store.results import Evaluation, Failure, Manifest, Result, Timings

TITLES = {"zero_shot": "Zero-shot", "bolt": "BOLT", "linear_probe": "Linear probe"}
DATASETS = ("ants", "bees", "cats", "dogs", "elks", "foxes", "goats", "hares")
ZERO_SHOT = 50.0
TOTAL = 1000


def label(cell: Cell) -> str:
    return TITLES.get(cell.method.name, cell.method.name)


def cell(
    method: str,
    dataset: str = "ants",
    k: int = 4,
    seed: int = 0,
    *,
    domain: str = "general",
    track: str = "fewshot",
    evaluate_on: Sequence[str] = (),
    settings: tuple[tuple[str, object], ...] = (),
    rule: str = "none",
    protocol: Protocol = STRICT,
    backbone: str = "tiny",
) -> Cell:
    k, seed = (0, 0) if method == "zero_shot" else (k, seed)
    return Cell(
        track=track,
        protocol=protocol,
        backbone=BackboneRef(backbone, "b0"),
        domain=domain,
        dataset=DatasetRef(dataset, "d0"),
        evaluate_on=tuple(DatasetRef(name, "d0") for name in evaluate_on or (dataset,)),
        sources_rule=rule,
        sources=(SourceRef("owls", "s0"),) if rule != "none" else (),
        shots=k,
        method=MethodRef(method, 1, settings),
        seed=seed,
    )


def result(of: Cell, *accuracies: float, zero_shot: float = ZERO_SHOT) -> Result:
    manifest = Manifest(
        "c0ffee1234567890", False, {"torch": "2.8.0"}, "a processor", 1, (), "2026-01-02T03:04:05+00:00"
    )
    evaluations = tuple(
        Evaluation(
            ref.name, accuracy, hits := round(accuracy * TOTAL / 100), TOTAL, zero_shot, ((hits, TOTAL),), None, None
        )
        for ref, accuracy in zip(of.evaluate_on, accuracies, strict=True)
    )
    return Result(of, evaluations, 7 if of.shots else 0, Timings(0.1, 0.5, 0.2), 100.0, of.shots, manifest, {}, {})


def base_to_new_result(of: Cell, base: float, new: float) -> Result:
    """Return a result of the track ``base_to_new``; the accuracy among all classes is the mean of both accuracies."""
    whole = result(of, (base + new) / 2)
    groups = tuple(
        replace(result(of, accuracy).evaluations[0], dataset=name)
        for name, accuracy in (("base classes", base), ("new classes", new))
    )
    return replace(whole, evaluations=whole.evaluations + groups)


def grid(
    accuracies: dict[str, float],
    *,
    datasets: Sequence[str] = DATASETS,
    ks: Sequence[int] = (1, 4),
    seeds: Sequence[int] = (0, 1),
    domain: str = "general",
) -> list[Result]:
    """Return a result of every cell: the method's accuracy plus k, plus a number of the dataset and one of the seed."""
    results = []
    for method, accuracy in accuracies.items():
        for i, dataset in enumerate(datasets):
            if method == "zero_shot":
                results.append(result(cell(method, dataset, domain=domain), ZERO_SHOT + i, zero_shot=ZERO_SHOT + i))
                continue
            for k in ks:
                for seed in seeds:
                    value = accuracy + k + i + 2 * seed * (1 + 0.1 * i)
                    results.append(
                        result(cell(method, dataset, k, seed, domain=domain), value, zero_shot=ZERO_SHOT + i)
                    )
    return results


def arrange(results: Sequence[Result], failures: Sequence[Failure] = (), **more: Any) -> Any:
    """Return the arranged results. ``more``: further arguments of ``GridResults``."""
    return GridResults(**{"results": results, "failures": failures, "label_of": label, **more})


def write(folder: Path, results: Sequence[Result], **changes: object):  # type: ignore[no-untyped-def]
    arguments: dict[str, object] = {
        "name": "demo", "title": "A grid", "description": "For the tests.", "results": results, "failures": (),
        "planned": [r.cell for r in results], "label_of": label,
    }  # fmt: skip
    return write_report(GridResults(**{**arguments, **changes}), folder)  # type: ignore[arg-type]


def terminal(results: GridResults, *, width: int = 500, verbose: bool = False) -> str:
    """Return the summary in the terminal."""
    said = io.StringIO()
    Console(width=width, file=said, force_terminal=False).print(terminal_summary(results, verbose=verbose))
    return said.getvalue()


def failure(id_: str) -> Failure:
    return Failure(
        id_, "RuntimeError: <loss> is not finite", "Traceback\n  <loss>", f"logs/{id_}.log", 2, "2026-01-02T03:04:05"
    )


def is_cell(r: Result, method: str, dataset: str, k: int) -> bool:
    return (r.cell.method.name, r.cell.dataset.name, r.cell.shots) == (method, dataset, k)


def under(protocol: Protocol, results: Sequence[Result], more: float = 0.0) -> list[Result]:
    """Return the results under another protocol; dataset number n is n times ``more`` points higher."""
    moved = []
    for r in results:
        accuracy = r.evaluations[0].accuracy + more * DATASETS.index(r.cell.dataset.name)
        evaluation = replace(r.evaluations[0], accuracy=accuracy)
        moved.append(replace(r, cell=replace(r.cell, protocol=protocol), evaluations=(evaluation,)))
    return moved
