"""What storing the predictions of every test image costs: bytes of a store, and milliseconds beside a cell's seconds.

    python benchmarks/predictions.py                      # runs the grid smoke first
    python benchmarks/predictions.py runs                 # the store of a grid that was run, for example by make demo
    python benchmarks/predictions.py runs --cells 100

The finished cells of a store are written again into a temporary one, in turn without and with their predictions; the
latter are compressed and checksummed anew. Goals: 5 % of the store's bytes; of time, nothing that could be measured, so
less than 1 % of what a cell takes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from orchestrator.store import Store  # noqa: E402
from orchestrator.store.predictions import predictions_content, predictions_file  # noqa: E402

BYTES_GOAL, TIME_GOAL = 5.0, 1.0


def main() -> None:
    """Measure one store and print both shares with their goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?", help="the folder of a store with finished cells")
    parser.add_argument("--cells", type=int, default=500, help="at most so many cells are written (500)")
    arguments = parser.parse_args()
    if arguments.store is not None:
        measure(arguments.store, arguments.cells)
        return
    with tempfile.TemporaryDirectory(prefix="bolt-smoke-") as folder:
        command = [sys.executable, "-m", "orchestrator", "grid", "smoke", "--local", "--store", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        measure(Path(folder), arguments.cells)


def measure(path: Path, cells: int) -> None:
    """Write cells of a store again, without and with their predictions."""
    store = Store(path)
    results, _ = store.read_results(sorted(store.result_ids())[:cells])
    predictions = store.read_predictions(results)
    results = [result for result in results if result.cell.id in predictions]
    if not results:
        sys.exit(f"{path} has no cell with predictions")
    without, with_ = [], []
    with tempfile.TemporaryDirectory(prefix="bolt-predictions-") as folder:
        copy = Store(folder)
        for result in results:
            start = time.perf_counter()
            copy.write_result(replace(result, predictions=None))
            middle = time.perf_counter()
            content = predictions_content(predictions[result.cell.id])
            copy.write_result(replace(result, predictions=predictions_file(content)), content)
            with_.append(time.perf_counter() - middle)
            without.append(middle - start)
    cell_seconds = statistics.fmean(sum(asdict(result.timings).values()) for result in results)
    extra = statistics.fmean(with_) - statistics.fmean(without)
    print(f"{len(results)} cells, {cell_seconds:.2f} s each on average")
    print(f"writing a result        {1000 * statistics.fmean(without):8.2f} ms")
    print(f"with its predictions    {1000 * statistics.fmean(with_):8.2f} ms")
    show("time of a cell", 100 * extra / cell_seconds, TIME_GOAL)
    sizes = {file: file.stat().st_size for file in path.rglob("*") if file.is_file()}
    arrays = sum(size for file, size in sizes.items() if file.parent.name == "results" and file.suffix == ".npz")
    show("bytes of the store", 100 * arrays / (sum(sizes.values()) - arrays), BYTES_GOAL)


def show(what: str, percent: float, goal: float) -> None:
    """Print a share of the predictions beside its goal."""
    print(f"predictions add {percent:.2f} % to the {what} (goal: at most {goal:g} %)")


if __name__ == "__main__":
    main()
