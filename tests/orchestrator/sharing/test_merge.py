"""``merge``: another store's results are taken over by identity, and nothing is overwritten."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import StatusFile, last_run, set_values, was_raced
from orchestrator.sharing.merge import MergedCell, merge_stores
from orchestrator.store import Store
from orchestrator.store.predictions import predictions_content, predictions_file
from orchestrator.store.results import Evaluation, Failure, Result
from orchestrator.util.errors import UserError
from tests.orchestrator.sharing.conftest import Stores

CopyOf = Callable[[Store, str], Store]
KILLED = """
import os, signal, sys
from orchestrator.sharing.merge import merge_stores
from orchestrator.store import Store, files

left = int(sys.argv[3])
write = files.Files._write

def dying_write(self, target, data, put):
    def dying_put(source, to):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        put(source, to)
    write(self, target, data, dying_put)

files.Files._write = dying_write
merge_stores(Store(sys.argv[1]), Store(sys.argv[2]))
"""


def contents(store: Store, *, timed: bool = False) -> dict[str, object]:
    """What a store has of cells: scores, predictions and adapters; with ``timed``, the bytes of the results."""
    found: dict[str, object] = {}
    for path in sorted(Path(store.url).glob("*/**/*")):
        name = path.relative_to(store.url).as_posix()
        kept = name.startswith(("results/", "adapters/", "failures/")) and not path.name.startswith(".")
        if path.is_file() and kept:
            result = name.startswith("results/") and name.endswith(".json") and not timed
            found[name] = scores(json.loads(path.read_text())) if result else path.read_bytes()
    return found


def scores(result: dict[str, object]) -> dict[str, object]:
    """The fields of a result that do not depend on when and how fast it was measured."""
    return {name: result[name] for name in ("cell", "evaluations", "predictions", "details", "trainable_parameters")}


def taken(cells: list[MergedCell]) -> list[str]:
    """The ids of the cells that a merge has taken over."""
    return [cell.cell_id for cell in cells if cell.kind == "taken"]


@pytest.mark.e2e
def test_two_halves_killed_often_give_the_whole(stores: Stores, whole: Store, tmp_path: Path, copy_of: CopyOf) -> None:
    """Two stores share half of their cells. Merged, they hold what one store holds that measured every cell."""
    third = len(stores.cells) // 3
    first = stores.measure(tmp_path / "first", stores.cells[: 2 * third])
    second = stores.measure(tmp_path / "second", stores.cells[third:])
    before = contents(first, timed=True)
    untouched = contents(second, timed=True)
    for writes in (0, 1, 2, 5, 4):
        command = [sys.executable, "-c", KILLED, first.url, second.url, str(writes)]
        assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
        for cell_id in first.result_ids():  # whatever is listed is complete
            assert Store(first.url).read_predictions([first.read_result(cell_id)])
    cells, _ = merge_stores(Store(first.url), Store(second.url))
    assert {cell.kind for cell in cells} == {"taken", "same"}
    assert 0 < len(taken(cells)) < third + 1  # the killed merges had taken others over
    assert contents(first) == contents(whole)
    assert contents(first, timed=True).items() >= before.items()
    assert contents(second, timed=True) == untouched
    again, failures = merge_stores(Store(first.url), Store(second.url))
    assert [(cell.kind, cell.adapter) for cell in again] == [("same", False)] * (len(stores.cells) - third)
    assert failures == []


def changed(store: Store, cell_id: str, *, flips: int = 1) -> Result:
    """Rewrite a result of ``store`` so that as many of its predictions, and its scores, are others."""
    result = store.read_result(cell_id)
    (split,) = store.read_predictions([result])[cell_id]
    predicted = split.predicted.copy()
    predicted[:flips] = (predicted[:flips] + 1) % len(result.evaluations[0].per_class)
    split = replace(split, predicted=predicted)
    correct = split.correct
    per_class = tuple(
        (int(correct[split.labels == number].sum()), size)
        for number, (_, size) in enumerate(result.evaluations[0].per_class)
    )
    hits = int(correct.sum())
    accuracy = 100.0 * hits / len(correct)
    scored: Evaluation = replace(result.evaluations[0], accuracy=accuracy, correct=hits, per_class=per_class)
    content = predictions_content([split])
    result = replace(result, evaluations=(scored,), predictions=predictions_file(content))
    store.write_result(result, content)
    return result


def test_a_conflict_is_named_and_nothing_is_overwritten(whole: Store, copy_of: CopyOf) -> None:
    ours, theirs = copy_of(whole, "ours"), copy_of(whole, "theirs")
    conflicting = sorted(ours.result_ids())[3]
    changed(theirs, conflicting, flips=7)
    before = contents(ours, timed=True)
    run = CliRunner().invoke(app, ["merge", theirs.url, "--store", ours.url])
    assert run.exit_code == 1
    (line,) = [line for line in run.stdout.splitlines() if conflicting in line]
    assert line.startswith("conflict")
    for store in (ours, theirs):
        assert f"{store.read_result(conflicting).evaluations[0].accuracy:.6g}" in line
    assert contents(ours, timed=True) == before


def test_damaged_files_of_the_other_store_are_named_and_left_alone(whole: Store, copy_of: CopyOf) -> None:
    ours, theirs = copy_of(whole, "ours"), copy_of(whole, "theirs")
    cut, unpredicted, bare = sorted(ours.result_ids())[:3]
    shutil.rmtree(Path(ours.url, "results"))
    shutil.rmtree(Path(ours.url, "adapters"))
    path = Path(theirs.url, "results", f"{cut}.json")
    path.write_bytes(path.read_bytes()[:-40])
    Path(theirs.url, "results", f"{unpredicted}.npz").unlink()
    adapter = Path(theirs.url, "adapters", bare, "adapter.safetensors")
    adapter.write_bytes(adapter.read_bytes() + b"x")
    untouched = contents(theirs, timed=True)
    cells, _ = merge_stores(ours, theirs)
    assert {cell.cell_id for cell in cells if cell.kind == "damaged"} == {cut, unpredicted}
    assert set(taken(cells)) == whole.result_ids() - {cut, unpredicted}
    assert ours.adapter_folder(bare) is None
    assert contents(theirs, timed=True) == untouched


def test_a_damaged_result_here_is_replaced(whole: Store, copy_of: CopyOf) -> None:
    ours, theirs = copy_of(whole, "ours"), copy_of(whole, "theirs")
    cell_id = sorted(ours.result_ids())[0]
    Path(ours.url, "results", f"{cell_id}.npz").write_bytes(b"")
    cells, _ = merge_stores(ours, theirs)
    assert taken(cells) == [cell_id]
    assert Store(ours.url).read_predictions([ours.read_result(cell_id)])


def test_failures_are_taken_over_with_their_logs(whole: Store, copy_of: CopyOf, tmp_path: Path) -> None:
    ours, theirs = copy_of(whole, "ours"), copy_of(whole, "theirs")
    failed, finished, both, cleared, *_ = sorted(ours.result_ids())
    for store, ids in ((ours, (failed, both)), (theirs, (failed, both, cleared))):
        for cell_id in ids:
            store.files.remove(f"results/{cell_id}.json")

    def fail(store: Store, cell_id: str, error: str) -> None:
        store.write_failure(Failure(cell_id, error, "", store.write_log(cell_id, f"log of {error}"), 1, "2026-01-01"))

    for cell_id in (failed, both, cleared):
        fail(theirs, cell_id, "theirs")
    for cell_id in (both, finished):
        fail(ours, cell_id, "ours")
    ours.files.remove(f"results/{finished}.json")
    cells, failures = merge_stores(ours, theirs)
    assert failures == [failed]
    assert taken(cells) == [finished]
    recorded = ours.read_failures()
    assert {name: failure.error for name, failure in recorded.items()} == {failed: "theirs", both: "ours"}
    assert Path(recorded[failed].log).read_text() == "log of theirs"
    assert Path(recorded[failed].log).is_relative_to(ours.url)


def test_a_grid_stays_a_race_with_the_values_of_its_run(whole: Store, copy_of: CopyOf) -> None:
    """The merged store reports other cells and another best set, unless it knows how the grid was run."""
    ours, theirs = copy_of(whole, "ours"), copy_of(whole, "theirs")
    theirs_ran = "python -m orchestrator grid world --race --set shots=1"
    StatusFile(theirs.files, "world", "", theirs_ran).write("ended", Snapshot())
    merge_stores(ours, theirs)
    assert was_raced(last_run(ours.files, "world"), planned=False)
    assert set_values(last_run(ours.files, "world"), None) == ["shots=1"]
    StatusFile(ours.files, "world", "", "python -m orchestrator grid world").write("ended", Snapshot())
    merge_stores(ours, theirs)
    assert not was_raced(last_run(ours.files, "world"), planned=False)  # the last run of this store counts


def test_a_store_is_refused_that_is_empty_or_the_same(whole: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no results"):
        merge_stores(whole, Store(tmp_path / "nothing"))
    with pytest.raises(UserError, match="itself"):
        merge_stores(whole, Store(whole.url))
