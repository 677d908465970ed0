"""The queue of cells: order, capacity, slots, and cells that run again. No cluster runs."""

from orchestrator.core.events import Resources
from orchestrator.execution.tune.cell_queue import CellQueue


def gpu(share: float) -> Resources:
    return Resources(1, share)


def take(cells: CellQueue, *trial_ids: str) -> list[int | None]:
    """The numbers of the cells given out to these trials, ``None`` where nothing fits."""
    configs = [cells.suggest(trial_id) for trial_id in trial_ids]
    return [config["cell"] if isinstance(config, dict) else None for config in configs]


def test_each_request_gets_its_share_of_the_cluster_and_keeps_its_slots() -> None:
    shares = [1.0, 1.0, 0.25, 0.25, 1.0, 0.25, 0.25, 0.25]
    cells = CellQueue(range(len(shares)), lambda number: gpu(shares[number]), lambda: Resources(64, 2))
    assert take(cells, "t0", "t1", "t2", "t3", "t4", "t5") == [0, 2, 3, 5, 6, None]  # one GPU for each request
    cells.on_trial_complete("t1")
    cells.on_trial_complete("t0")
    assert take(cells, "t6", "t7", "t8") == [1, 7, None]  # their workers can be reused
    cells.on_trial_complete("t6")
    assert take(cells, "t9") == [4]


def test_free_capacity_goes_to_what_fits() -> None:
    shares = [0.5, 0.5, 1.0, 1.0]
    cells = CellQueue(range(len(shares)), lambda number: gpu(shares[number]), lambda: Resources(64, 1))
    assert take(cells, "a", "b", "c", "d") == [2, None, None, None]
    cells.on_trial_complete("a")
    assert take(cells, "e", "f", "g") == [3, None, None]
    cells.on_trial_complete("e")
    assert take(cells, "h", "i", "j") == [0, 1, None]


def test_the_queue_is_finished_when_no_cell_runs_and_none_waits() -> None:
    cells = CellQueue(range(1), lambda number: gpu(0.25), lambda: Resources(1, 1))
    assert take(cells, "a", "b") == [0, None]
    assert not cells.finished
    cells.on_trial_complete("a")
    cells.requeue(0, gpu(1.0), first=False)
    assert not cells.finished
    assert cells.suggest("c") == {"cell": 0, "cpus": 1, "gpus": 1.0}
    cells.on_trial_complete("c")
    assert cells.finished
    stopped = CellQueue(range(9), lambda number: gpu(0.5), lambda: Resources(64, 1))
    assert take(stopped, "a") == [0]
    stopped.stop()
    assert take(stopped, "b") == [None]
    assert not stopped.finished
    stopped.on_trial_complete("a")
    assert stopped.finished


def test_a_queue_with_more_to_come_is_not_finished_and_gives_out_what_is_added() -> None:
    cells = CellQueue(range(1), lambda number: gpu(0.5), lambda: Resources(64, 1))
    cells.more_to_come = True
    assert take(cells, "a", "b") == [0, None]
    cells.on_trial_complete("a")
    assert not cells.finished
    assert take(cells, "c") == [None]
    cells.add([7, 5])
    assert take(cells, "d", "e", "f") == [7, 5, None]
    cells.more_to_come = False
    cells.on_trial_complete("d")
    assert not cells.finished
    cells.on_trial_complete("e")
    assert cells.finished


def test_a_cell_that_lost_its_worker_comes_first_and_one_that_needs_more_comes_last() -> None:
    cells = CellQueue(range(3), lambda number: gpu(0.5), lambda: Resources(64, 0.5))
    assert take(cells, "a", "full") == [0, None]
    cells.on_trial_complete("a")
    cells.requeue(0, gpu(1.0), first=False)
    order = []
    for trial_id in "bcde":
        order += take(cells, trial_id)
        cells.on_trial_complete(trial_id)
        if trial_id == "b":
            cells.requeue(1, gpu(0.5), first=True)
    assert order == [1, 1, 2, 0]


def test_a_cells_request_is_computed_when_the_cell_is_given_out() -> None:
    share = 1.0
    cells = CellQueue(range(5), lambda number: gpu(share), lambda: Resources(64, 1))
    assert take(cells, "a", "b") == [0, None]
    share = 0.25
    cells.requeue(4, gpu(0.25), first=False)
    assert take(cells, "late") == [None]  # the running cell holds the whole GPU
    cells.on_trial_complete("a")
    assert take(cells, "c", "d", "e", "f", "g") == [1, 2, 3, 4, None]


def test_the_longest_of_the_last_cells_starts_before_it_would_outlast_the_others() -> None:
    work = [1.0, 1.0, 5.0, 1.0, 1.0, 6.0]
    cells = CellQueue(range(len(work)), lambda number: gpu(0.5), lambda: Resources(64, 1), work.__getitem__)
    order = take(cells, "a", "b")
    for ended, begun in (("a", "c"), ("b", "d"), ("c", "e"), ("d", "f")):
        cells.on_trial_complete(ended)
        order += take(cells, begun)
    assert order == [0, 1, 2, 5, 3, 4]
