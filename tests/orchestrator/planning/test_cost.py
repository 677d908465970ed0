"""The predicted seconds and memory of cells."""

from dataclasses import replace

import pytest

from orchestrator.core.cell import Cell, MethodRef
from orchestrator.core.gpu_memory import RESERVED_MEMORY
from orchestrator.planning.cost import CostModel, Work, artifact_work, held_mib
from orchestrator.store.results import Result
from tests.helpers import cells as samples

BOLT, LORA, PROBE = (samples.cell(method=method) for method in ("bolt", "lora", "linear_probe"))


def work(cell: Cell, gflop: float) -> Work:
    """Return the work of a cell with ``gflop`` operations, in units of 10^9."""
    return CostModel(lambda cell: gflop).work(cell)


def measured(*done: tuple[Cell, float, float]) -> CostModel:
    """Return a cost model that has learned from these (cell, operations, seconds)."""
    costs = CostModel()
    for cell, gflop, seconds in done:
        costs.learn(work(cell, gflop), seconds)
    return costs


def on_gpu(cell: Cell, mebibytes: float) -> Result:
    """Return the result of a cell that took this memory on a GPU."""
    result = samples.result(cell)
    manifest = replace(result.manifest, device="NVIDIA H100")
    return replace(result, manifest=manifest, details={RESERVED_MEMORY: mebibytes})


def test_seconds_grow_with_the_operations_within_a_group() -> None:
    costs = measured((BOLT, 10, 1.0), (BOLT, 30, 3.0), (PROBE, 0, 0.1), (PROBE, 0, 0.3))
    assert costs.predict(work(BOLT, 200)) == pytest.approx(20.0)
    assert costs.predict(work(PROBE, 0)) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("cell", "gflop", "seconds"),
    [
        (BOLT, 10, 1.0),
        (replace(BOLT, shots=2), 10, 2.0),  # by ratio, k = 1 is nearer to 2 than k = 4 is
        (replace(BOLT, shots=16), 10, 1.0),  # k = 4 is the nearest
        (replace(BOLT, track="ood"), 10, 1.0),  # the same method at the same k on another track
        (samples.cell(backbone="large"), 100, 10.0),  # on another backbone, by operations
        (LORA, 12, 1.2),  # another method on this backbone, at this k
        (samples.cell(method="tip_adapter"), 0, 0.5),  # another method that reads features only
        (samples.cell(method="lora", backbone="large"), 10, 1.0),  # any cell
    ],
)
def test_what_was_never_measured_borrows_from_its_nearest_relative(cell: Cell, gflop: float, seconds: float) -> None:
    costs = measured((BOLT, 10, 1.0), (replace(BOLT, shots=1), 5, 1.0), (PROBE, 0, 0.5))
    assert costs.predict(work(cell, gflop)) == pytest.approx(seconds)


def test_old_measurements_fade() -> None:
    """Earlier results may be from another machine, so the results of this run soon outweigh them."""
    costs = measured(*[(BOLT, 10, 100.0)] * 200, *[(BOLT, 10, 1.0)] * 60)
    predicted = costs.predict(work(BOLT, 10))
    assert predicted is not None
    assert predicted < 10


def test_artifacts_are_predicted_by_artifacts() -> None:
    costs = measured((BOLT, 10, 1.0))
    assert costs.predict(artifact_work("sources/a", 10)) is None
    costs.learn(artifact_work("sources/a", 10), 4.0)
    assert costs.predict(artifact_work("sources/b", 20)) == pytest.approx(8.0)
    assert costs.predict(artifact_work("features/b", 20)) == pytest.approx(8.0)
    assert costs.predict(work(BOLT, 10)) == pytest.approx(1.0)


def test_memory_is_the_most_of_the_most_similar_cells() -> None:
    inks = samples.cell(dataset="inks", shots=16)
    other_settings = replace(BOLT, method=MethodRef("bolt", 1, (("top_k", 99),)))
    costs = CostModel(done=[on_gpu(BOLT, 300.0), on_gpu(replace(BOLT, seed=7), 400.0), on_gpu(inks, 900.0)])
    assert costs.memory_mib(replace(BOLT, seed=9)) == 400.0
    assert costs.memory_mib(samples.cell(dataset="greek", shots=2)) == 400.0
    assert costs.memory_mib(samples.cell(dataset="greek", shots=12)) == 900.0
    assert costs.memory_mib(other_settings) == 400.0


@pytest.mark.parametrize("cell", [replace(BOLT, track="ood"), samples.cell(backbone="large"), LORA])
def test_memory_is_not_borrowed_from_another_track_backbone_or_method_nor_from_a_cpu(cell: Cell) -> None:
    assert CostModel(done=[on_gpu(BOLT, 300.0)]).memory_mib(cell) is None
    on_cpu = samples.result(cell)
    assert held_mib(on_cpu) == 0.0
    assert CostModel(done=[on_cpu]).memory_mib(cell) is None


def test_without_similar_cells_there_is_no_prediction() -> None:
    assert CostModel().predict(work(BOLT, 100)) is None
    assert measured((PROBE, 0, 9.0)).predict(work(BOLT, 100)) is None  # cached features say nothing about towers
    assert CostModel().memory_mib(BOLT) is None
