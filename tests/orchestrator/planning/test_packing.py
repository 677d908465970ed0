"""What cells ask of a GPU and why; which cell is dealt next; how a worker's end is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bolt.methods import METHODS
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell, MethodRef
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from orchestrator.execution.tune import worker_failures as endings
from orchestrator.execution.tune.queue import Deck
from orchestrator.planning.packing import CONTEXT_MIB, RESERVED, Packing, held_mib, smallest_share
from orchestrator.store.failure_kind import patiently, problem_of
from orchestrator.store.remote import StoreUnavailable
from orchestrator.store.results import Result
from tests.helpers import cells as samples

GPU = 80 * 1024.0


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def cell(method: str = "linear_probe", shots: int = 4, dataset: str = "glyph-digits", seed: int = 1) -> Cell:
    """A cell of the shipped tiny backbone, whose sizes the catalog knows."""
    made = samples.cell(seed, method=method, shots=shots, dataset=dataset, backbone="tiny-clip")
    return replace(made, method=MethodRef(method, METHODS[method].version, ()))


def on_gpu(of: Cell, held: float) -> Result:
    """A result of a cell that ran on a GPU."""
    made = samples.result(of)
    return replace(made, manifest=replace(made.manifest, device="NVIDIA H100"), details={RESERVED: held})


def test_nothing_measured_is_assumed_and_said_to_be(catalog: Catalog) -> None:
    packing = Packing(catalog, gpu_mib=GPU)
    assert [packing.demand(cell(method)).share for method in ("linear_probe", "bolt")] == [0.25, 1.0]
    assert packing.demand(cell()).words == "4 (assumed)"
    assert Packing(catalog).demand(cell()).share == 0.25


def test_a_frozen_backbone_too_large_for_a_quarter_of_a_small_gpu_gets_more(catalog: Catalog) -> None:
    assert Packing(catalog, gpu_mib=2 * CONTEXT_MIB).demand(cell()).share == 1.0


@pytest.mark.parametrize(
    ("held", "share"), [(100, 1 / 16), (4000, 1 / 8), (12_000, 1 / 4), (30_000, 1 / 2), (60_000, 1.0), (200_000, 1.0)]
)
def test_the_smallest_share_that_holds_what_was_measured_and_some_more(
    catalog: Catalog, held: float, share: float
) -> None:
    demand = Packing(catalog, [on_gpu(cell("bolt"), held)], GPU).demand(cell("bolt", seed=2))
    assert (demand.share, demand.mib) == (share, held + CONTEXT_MIB)


def test_the_closest_measured_cell_counts(catalog: Catalog) -> None:
    done = [on_gpu(cell("bolt", 4), 4000), on_gpu(cell("bolt", 16), 12_000), on_gpu(cell("lora", 4), 30_000)]
    packing = Packing(catalog, done, GPU)
    assert packing.demand(cell("bolt", 4, dataset="glyph-inks")).share == 1 / 8
    assert packing.demand(cell("bolt", 12)).share == 1 / 4
    other_settings = replace(cell("bolt", 16), method=MethodRef("bolt", 1, (("top_k", 99),)))
    assert packing.demand(other_settings).share == 1 / 4
    assert packing.demand(replace(cell("bolt"), track="ood")).mib is None  # another track looks at more images


def test_finished_cells_teach_and_cells_that_ran_out_get_more(catalog: Catalog) -> None:
    packing = Packing(catalog, gpu_mib=GPU)
    packing.learn(cell("bolt"), 4000)
    assert packing.demand(cell("bolt")).share == 1 / 8
    packing.outgrew(cell("bolt"), 1 / 8)
    assert packing.demand(cell("bolt", seed=7)).share == 1 / 4
    packing.outgrew(cell("bolt"), 1.0)
    assert packing.demand(cell("bolt")).share == 1.0


def test_what_was_measured_on_a_cpu_says_nothing_of_a_gpu(catalog: Catalog) -> None:
    on_cpu = samples.result(cell("bolt"))
    assert held_mib(on_cpu) == 0.0
    assert Packing(catalog, [on_cpu], GPU).demand(cell("bolt")).mib is None


def test_a_share_holds_all_there_is_at_most() -> None:
    assert smallest_share(GPU, GPU) == smallest_share(9 * GPU, GPU) == 1.0


def test_no_gpu_is_asked_for_where_none_is_used(catalog: Catalog) -> None:
    packing = Packing(catalog, gpu_mib=GPU)
    here, cpu = RunSettings("s"), RunSettings("s", device="cpu")
    assert packing.resources(cell("bolt"), here, 8) == Resources(1, 1.0)
    assert packing.resources(cell("bolt"), here, 0) == packing.resources(cell("bolt"), cpu, 8) == Resources(1)


# -- dealing -------------------------------------------------------------------------------------------------------


def deal(deck: Deck) -> list[int]:
    """Everything that can be dealt now, by number."""
    dealt: list[int] = []
    while (hand := deck.take(str(len(dealt)) + "-" + str(id(dealt)))) is not None:
        dealt.append(hand.number)
    return dealt


def gpu(share: float) -> Resources:
    return Resources(1, share)


def test_each_kind_gets_its_part_of_the_room_and_keeps_its_places() -> None:
    shares = [1.0, 1.0, 0.25, 0.25, 1.0, 0.25, 0.25, 0.25]
    deck = Deck(len(shares), lambda number: gpu(shares[number]), lambda: (64, 2))
    first = [deck.take(f"t{number}") for number in range(6)]
    assert [hand.number if hand else None for hand in first] == [0, 2, 3, 5, 6, None]  # one GPU for each kind
    deck.ended("t1")
    deck.ended("t0")
    following = [deck.take("t6"), deck.take("t7"), deck.take("t8")]
    assert [hand.number if hand else None for hand in following] == [1, 7, None]  # their workers are kept
    deck.ended("t6")
    last = deck.take("t9")
    assert last is not None
    assert last.number == 4


def test_room_that_no_kind_keeps_goes_to_what_fits() -> None:
    shares = [0.5, 0.5, 1.0, 1.0]
    deck = Deck(len(shares), lambda number: gpu(shares[number]), lambda: (64, 1))
    assert [hand.number for name in "abcd" if (hand := deck.take(name))] == [2]
    deck.ended("a")
    assert [hand.number for name in "efg" if (hand := deck.take(name))] == [3]
    deck.ended("e")
    assert [hand.number for name in "hij" if (hand := deck.take(name))] == [0, 1]


def test_a_deck_knows_when_it_is_over() -> None:
    deck = Deck(1, lambda number: gpu(0.25), lambda: (1, 1))
    assert deck.take("a") is not None
    assert deck.take("b") is None
    assert not deck.over
    deck.ended("a")
    deck.hand_back(0, gpu(1.0), soon=False)
    assert not deck.over
    hand = deck.take("c")
    assert hand is not None
    assert hand.request == gpu(1.0)
    deck.ended("c")
    assert deck.over


def test_what_needs_more_comes_last_and_what_lost_its_worker_first() -> None:
    deck = Deck(3, lambda number: gpu(0.5), lambda: (64, 0.5))
    assert deal(deck) == [0]
    deck = Deck(3, lambda number: gpu(0.5), lambda: (64, 0.5))
    order = []
    for name in "abcde":
        hand = deck.take(name)
        assert hand is not None
        order.append(hand.number)
        deck.ended(name)
        if name == "a":
            deck.hand_back(0, gpu(1.0), soon=False)
        if name == "b":
            deck.hand_back(1, gpu(0.5), soon=True)
    assert order == [0, 1, 1, 2, 0]


def test_a_stopped_deck_deals_no_more_and_is_over_when_the_last_has_ended() -> None:
    deck = Deck(9, lambda number: gpu(0.5), lambda: (64, 1))
    assert deck.take("a") is not None
    deck.stop()
    assert deck.take("b") is None
    assert not deck.over
    deck.ended("a")
    assert deck.over


def test_requests_are_worked_out_when_a_cell_is_dealt() -> None:
    asked = {"share": 1.0}
    deck = Deck(5, lambda number: gpu(asked["share"]), lambda: (64, 1))
    assert deal(deck) == [0]
    asked["share"] = 0.25
    deck.hand_back(4, gpu(0.25), soon=False)
    assert deck.take("late") is None  # the one that runs holds the whole GPU


# -- how it ended --------------------------------------------------------------------------------------------------

DIED = "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tpid: 7\n"
KILLED = DIED + "Worker unexpectedly exits with a connection error code 2. End of file."
BY_RAY = "Task was killed due to the node running low on memory.\nMemory on the node was 23 GB / 24 GB."


def test_a_worker_that_died_is_told_from_a_machine_that_did_and_from_want_of_memory() -> None:
    gone = DIED + "The actor died because its node has died. Node Id: 0a"
    away = "The actor 0a is unavailable: rpc error. The task may or may not have been executed on the actor."
    raised = 'Traceback:\n  File "x.py"\nValueError: the node has died, said a method'
    assert [endings.lost_its_node(said) for said in (KILLED, gone, away, raised)] == [False, True, True, False]
    assert [endings.ran_out_of_memory(said, False) for said in (KILLED, BY_RAY, raised)] == [False, True, False]
    assert [endings.ran_out_of_memory(said, True) for said in (KILLED, raised)] == [True, False]
    assert endings.why(KILLED).startswith("the worker process died: Worker unexpectedly exits")
    assert endings.why(raised) == "ValueError: the node has died, said a method"
    assert endings.kernel_kills() >= 0


def test_errors_that_are_not_the_cells_own() -> None:
    import torch

    full = OSError(28, "No space left on device")
    wrapped = ValueError("cannot save")
    wrapped.__cause__ = full
    assert [problem_of(error) for error in (full, wrapped, StoreUnavailable("away"))] == ["store"] * 3
    assert problem_of(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")) == "gpu_memory"
    assert problem_of(RuntimeError("CUDA error: out of memory")) == "gpu_memory"
    assert problem_of(MemoryError()) == "main_memory"
    assert [problem_of(error) for error in (ValueError("out of memory"), FileNotFoundError("x"))] == ["", ""]


def test_a_remote_store_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.failure_kind.PAUSES", (0.0, 0.0))
    tries = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise StoreUnavailable("the server does not answer")
        return "read"

    assert patiently(False, flaky) == "read"
    tries.clear()
    with pytest.raises(StoreUnavailable):
        patiently(True, flaky)  # a disk does not come back by waiting
    assert len(tries) == 1


def test_a_plan_says_how_a_gpu_is_packed_and_by_what(catalog: Catalog, tmp_path: Path) -> None:
    from rich.console import Console

    from orchestrator.grid import load_grid
    from orchestrator.planning.plan import make_plan
    from orchestrator.planning.plan_view import packing_view
    from orchestrator.store import Store

    grid = load_grid("demo", catalog, only=["method=linear_probe,bolt", "track=fewshot"])
    plan = make_plan(grid, catalog, Store(tmp_path))
    probe = next(cell for cell in plan.todo if cell.method.name == "linear_probe")
    measured = replace(plan, done=(on_gpu(probe, 400),))
    with open(tmp_path / "out", "w") as stream:
        Console(width=200, file=stream).print(packing_view(measured, catalog, 40 * 2**30))
    text = Path(tmp_path, "out").read_text()
    assert "one GPU of 40.0 GiB holds" in text
    assert "16 (1000.0 MiB measured)" in text  # 400 and what CUDA takes, and a quarter more, sixteen times
    assert "1 (assumed)" in text
