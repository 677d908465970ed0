"""The whole chain at real size on CPU cores: ViT-B/32, three folders of images, the paper's few-shot methods at k = 1.

    python benchmarks/real_size.py                         # about ten minutes on two cores
    python benchmarks/real_size.py --against CHECKOUT      # then the same with another version of the project

The weights are random, because no network is needed then: accuracy means nothing here, time and memory do. Each folder
has five classes of 8 training and 8 test photographs of 500 x 375 pixels. The grid fine-tunes a source model of each
folder, makes bases of them, and runs every method on every folder. aTLAS takes two epochs instead of twenty,
because each of its epochs has ten batches of 32 views however few images there are.

Compared with the limit: the operations that the plan counts in the towers, at the rate at which the same cores multiply
the matrices of a ViT-B block, measured before the run. The goals are ten minutes and 3 GiB for the largest process.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

FOLDERS, CLASSES, TRAINING, TESTED = 3, 5, 8, 8
SIZE = (500, 375)
GOAL_SECONDS, GOAL_BYTES = 600.0, 3 * 2**30
SAMPLED_EVERY = 0.5
"""Seconds between two looks at the processes. The kernel keeps the peak of each, so little is missed."""
GRID = """\
title: Real size
description: The paper's few-shot methods at one shot, on three folders of images.
protocol: strict
fine_tuning: {epochs: 2, batch_size: 32, warmup_steps: 2}
blocks:
  - track: fewshot
    backbones: [random-vit]
    domains: [own]
    sources: leave_one_out
    shots: [1]
    seeds: [1]
    methods: [zero_shot, linear_probe, tip_adapter, lp_plus_plus, lora, {atlas: {epochs: 2}}, bolt_pooled, bolt]
"""


@dataclass(frozen=True)
class Measured:
    """What a run took.

    Attributes:
        bytes: the most memory that one of its processes held.
        shared: how much of that are mapped files, above all the code of libraries, which all processes share.
    """

    seconds: float
    bytes: int
    shared: int


def write_images(folder: Path, seed: int) -> None:
    """``folder/train/CLASS/NN.jpg`` and ``folder/test/CLASS/NN.jpg``: a colour a class under smooth noise."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(seed)
    for part, count in (("train", TRAINING), ("test", TESTED)):
        for label in range(CLASSES):
            place = folder / part / f"class {label}"
            place.mkdir(parents=True)
            for number in range(count):
                coarse = np.uint8(draw.integers(0, 160, (12, 16, 3)) + 90 * np.eye(3)[label % 3])
                Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC).save(place / f"{number:02}.jpg")


def write_weights(path: Path) -> None:
    """Random weights of ViT-B/32 in open_clip's layout."""
    import open_clip
    import torch

    logging.getLogger().setLevel(logging.ERROR)  # open_clip warns of weights that are random
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(open_clip.create_model("ViT-B-32", pretrained=None).state_dict(), path)


def matrix_gflops() -> float:
    """10^9 operations a second of all cores with the largest product of a ViT-B block: 32 images of 50 tokens."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    tokens, weights = torch.rand(32 * 50, 768), torch.rand(768, 3072)
    rates = []
    for _ in range(60):
        begun = time.perf_counter()
        tokens @ weights
        rates.append(2e-9 * tokens.numel() * weights.shape[1] / (time.perf_counter() - begun))
    return sorted(rates)[len(rates) // 2]


def counted_gflops(folder: Path) -> float:
    """10^9 operations in the towers of all artifacts and cells, as the plan counts them."""
    from orchestrator.catalog import load_catalog
    from orchestrator.grid import load_grid
    from orchestrator.planning.gpu_estimate import workload
    from orchestrator.planning.plan import make_plan
    from orchestrator.store import Store

    catalog = load_catalog([folder / "catalog.yaml"])
    plan = make_plan(load_grid(folder / "grid.yaml", catalog), catalog, Store(str(folder / "empty")), None)
    return sum(workload(plan, plan.cells).gflops.values())


def orchestrator(checkout: Path, folder: Path, *words: str) -> None:
    """Run a command of one version of the project in ``folder``. Raises ``CalledProcessError`` if it fails."""
    subprocess.run(_command(words), cwd=folder, env=_environment(checkout), check=True, stdout=subprocess.DEVNULL)


def run_grid(checkout: Path, folder: Path, store: Path) -> Measured:
    """Run the grid with one version of the project, and watch the memory of its processes."""
    here = ("--catalog", str(folder / "catalog.yaml"), "--data-root", str(folder), "--store", str(store))
    words = ("grid", str(folder / "grid.yaml"), *here)
    begun, peak = time.perf_counter(), (0, 0)
    with subprocess.Popen(_command(words), cwd=folder, env=_environment(checkout)) as process:
        try:
            while process.poll() is None:
                peak = max(peak, _peak(process.pid))
                time.sleep(SAMPLED_EVERY)
        finally:
            process.terminate()
    if process.returncode:
        raise RuntimeError(f"the grid ended with exit code {process.returncode}")
    return Measured(time.perf_counter() - begun, *peak)


def main() -> int:
    """Measure, print, and compare with the goals; returns 1 when one was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="run another version of the project as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bolt-bench-") as name:
        folder = Path(name)
        write_weights(folder / "weights.pt")
        add = ("--catalog", str(folder / "catalog.yaml"))
        file = ("--file", str(folder / "weights.pt"))
        orchestrator(ROOT, folder, "backbones", "add", "ViT-B-32", "--name", "random-vit", "--gelu", *file, *add)
        for number in range(FOLDERS):
            write_images(folder / f"photographs-{number}", number)
            orchestrator(ROOT, folder, "data", "add", str(folder / f"photographs-{number}"), *add)
        (folder / "grid.yaml").write_text(GRID)
        rate, counted = matrix_gflops(), counted_gflops(folder)
        limit = counted / rate
        print(f"limit: {counted / 1e3:,.1f} TFLOP at {rate:.0f} GFLOP/s of {os.cpu_count()} cores, {limit:.0f} s")
        ours = run_grid(ROOT, folder, folder / "runs")
        _print("this version", ours, limit)
        if options.against:
            _print(str(options.against), run_grid(options.against.resolve(), folder, folder / "against"), limit)
    met = ours.seconds <= GOAL_SECONDS and ours.bytes <= GOAL_BYTES
    print(f"{'met' if met else 'MISSED':>6}  goal {GOAL_SECONDS / 60:.0f} minutes and {GOAL_BYTES / 2**30:.0f} GiB")
    return 0 if met else 1


def _command(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "orchestrator", *words]


def _environment(checkout: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(checkout)}


def _peak(pid: int) -> tuple[int, int]:
    """The largest resident set that a process or one of its descendants had up to now, and its mapped files; bytes."""
    import psutil

    peak = 0, 0
    with suppress(psutil.Error):  # it ended meanwhile
        for process in (root := psutil.Process(pid), *root.children(recursive=True)):
            with suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                kibibytes = dict(re.findall(r"^(\w+):\s*(\d+) kB$", status, re.MULTILINE))
                peak = max(peak, (1024 * int(kibibytes.get("VmHWM", 0)), 1024 * int(kibibytes.get("RssFile", 0))))
    return peak


def _print(name: str, measured: Measured, limit: float) -> None:
    taken = f"{measured.seconds / 60:.1f} minutes, {measured.seconds / limit:.2f} x the limit"
    print(
        f"{name}: {taken}, {measured.bytes / 2**30:.2f} GiB, {measured.shared / 2**30:.2f} of it mapped files",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
