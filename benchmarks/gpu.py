"""What a GPU does with this project: five measurements with synthetic weights and images, in about ten minutes.

    python benchmarks/gpu.py                      # on a CPU the same measurements run tiny, to show that they work
    python benchmarks/gpu.py --only steps views --output gpu.json

Prints the numbers, and writes them as JSON with --output. A measurement that fails has a line with the error.

    rates      10^12 operations a second of matrix products and of forward passes, in every precision
    steps      a training step of BOLT, LoRA, full fine-tuning and aTLAS: time on the GPU and on the clock, share of the
               time that the GPU computes, reserved memory
    bits       a cell of 50 steps twice, with PyTorch's default kernels and with those that cells use: equal bits?
    views      a batch of random crops made on the device: equal to those of the host, and milliseconds of both
    packing    steps a second of 1, 4, 8 and 16 processes that share the GPU; to compare, start NVIDIA's multi-process
               service first
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import candidates
from benchmarks.candidates import SHAPES, random_batch, random_tower, training_step
from bolt.clip.augment import SUPPORT_CROP, Box, crop_view, draw_box
from bolt.clip.batched_resize import resize_crops
from bolt.clip.precision import forward_pass
from bolt.clip.tower import ImageTower, matrix_modules
from bolt.clip.tower_shape import TowerShape
from bolt.protocol import Precision

Row = dict[str, Any]
METHODS: dict[str, Callable[[ImageTower, int], candidates.Ready]] = {
    "bolt": candidates.bolt,
    "lora": lambda tower, sources: candidates.lora(tower),
    "full_finetune": lambda tower, sources: candidates.CANDIDATES["full_finetune"](tower),
    "atlas": candidates.atlas,
}


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        towers: their shapes, by name.
        batch: images of a training step.
        cell_steps: steps of the cell that is repeated.
        repeats: how often a step, a copy or a product is timed.
        sources: task vectors of aTLAS, and sources of BOLT's bases.
        photograph: height and width of the images that views are made of.
        processes: numbers of processes that share the GPU, one number after the other.
        seconds: how long they share it.
    """

    towers: dict[str, TowerShape]
    batch: int
    cell_steps: int
    repeats: int
    sources: int
    photograph: tuple[int, int]
    processes: tuple[int, ...]
    seconds: float


SCALES = {
    "full": Scale(
        SHAPES, batch=32, cell_steps=50, repeats=20, sources=16, photograph=(375, 500), processes=(1, 4, 8, 16),
        seconds=8.0,
    ),
    "tiny": Scale(
        {"tiny": TowerShape(32, 8, 32, 1, 2, 64, 16, "quick_gelu")},
        batch=4, cell_steps=2, repeats=1, sources=2, photograph=(40, 60), processes=(2,), seconds=0.1,
    ),
}  # fmt: skip


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def precisions(device: str) -> tuple[Precision, ...]:
    """Return the precisions of a device; only GPUs have TF32."""
    return ("float32", "tf32", "bfloat16") if device == "cuda" else ("float32", "bfloat16")


def timed(work: Callable[[], Any], repeats: int, device: str) -> float:
    """Return the seconds of one call by the clock, after one call that does not count."""
    work()
    synchronise(device)
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronise(device)
    return (time.perf_counter() - started) / repeats


def seconds_computing(work: Callable[[], Any], repeats: int) -> float:
    """Return the seconds that the GPU's kernels take in one call, according to torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / repeats


def measure_rates(scale: Scale, device: str) -> Iterator[Row]:
    for name, shape in scale.towers.items():
        tower = random_tower(shape, device)
        images, _ = random_batch(shape, scale.batch, device)
        tokens = scale.batch * ((shape.image_size // shape.patch_size) ** 2 + 1)
        matrices = [linear.weight for linear in matrix_modules(tower).values()]
        weight = max(matrices, key=Tensor.numel)
        x = torch.randn(tokens, weight.shape[1], device=device)
        in_attention = 4 * shape.layers * shape.width * tokens**2 // scale.batch
        works: dict[str, tuple[Callable[[], Tensor], int]] = {
            "product_tflops": (partial(F.linear, x, weight), 2 * tokens * weight.numel()),
            "forward_tflops": (partial(tower, images), 2 * tokens * sum(map(Tensor.numel, matrices)) + in_attention),
        }
        for precision in precisions(device):
            row: Row = {"tower": name, "precision": precision}
            tower.precision = precision
            with forward_pass(precision, torch.device(device)), torch.no_grad():
                for column, (work, operations) in works.items():
                    row[column] = operations / 1e12 / timed(work, scale.repeats, device)
            yield row


def measure_steps(scale: Scale, device: str) -> Iterator[Row]:
    for tower_name, shape in scale.towers.items():
        for method in METHODS:
            row: Row = {"tower": tower_name, "method": method}
            try:
                for measured in _measure_steps_of(shape, method, scale, device):
                    yield row | measured
            except torch.OutOfMemoryError:
                yield row | {"error": "out of memory"}


def _measure_steps_of(shape: TowerShape, method: str, scale: Scale, device: str) -> Iterator[Row]:
    tower = random_tower(shape, device)
    ready = METHODS[method](tower, scale.sources)
    images, labels = random_batch(shape, scale.batch, device)
    for precision in precisions(device):
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        tower.precision = precision  # before it begins: the method's copy of the tower inherits it
        step = partial(training_step(ready.begin(), shape, precision=precision), images, labels)
        wall = timed(step, scale.repeats, device)
        row: Row = {"precision": precision, "wall_ms": 1e3 * wall}
        if device == "cuda":
            computing = seconds_computing(step, min(5, scale.repeats))
            row |= {"computing_ms": 1e3 * computing, "busy_share": min(1.0, computing / wall)}
            row["reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
        yield row


def measure_bits(scale: Scale, device: str) -> Iterator[Row]:
    for name, shape in scale.towers.items():
        for strict in (False, True):
            one, other = (_cell(shape, scale, device, strict) for _ in range(2))
            largest = max(float((a - b).abs().max()) for a, b in zip(one[0], other[0], strict=True))
            equal = all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
            row = {"tower": name, "deterministic": strict, "equal_bits": equal, "largest_difference": largest}
            yield {**row, "seconds": one[1], "steps": scale.cell_steps}


def _cell(shape: TowerShape, scale: Scale, device: str, strict: bool) -> tuple[list[Tensor], float]:
    """Train BOLT for some steps on views made on the device; return the trained coefficients and the seconds."""
    begun = candidates.bolt(random_tower(shape, device), scale.sources).begin()
    step = training_step(begun, shape, precision=precisions(device)[-2], deterministic=strict)
    photographs = random_photographs(scale, device)
    _, labels = random_batch(shape, scale.batch, device)
    synchronise(device)
    started = time.perf_counter()
    for number in range(scale.cell_steps):
        step(views_of(photographs, number, shape.image_size), labels)
    synchronise(device)
    return [tensor.detach().cpu() for tensor in begun.trained], time.perf_counter() - started


def random_photographs(scale: Scale, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    shape = (3, *scale.photograph)
    return [torch.randint(256, shape, generator=generator, dtype=torch.uint8).to(device) for _ in range(scale.batch)]


def boxes_of(photographs: Sequence[Tensor], view: int) -> list[Box]:
    count = len(photographs)
    return [draw_box(*image.shape[1:], view * count + row, SUPPORT_CROP) for row, image in enumerate(photographs)]


def views_of(photographs: Sequence[Tensor], view: int, side: int) -> Tensor:
    """Return a batch of random crops, made where the photographs are: float32 (B, 3, S, S)."""
    return resize_crops(photographs, boxes_of(photographs, view), side).float().div_(255).sub_(0.5)


def measure_views(scale: Scale, device: str) -> Iterator[Row]:
    side = max(shape.image_size for shape in scale.towers.values())
    on_host = random_photographs(scale, "cpu")
    on_device = [image.to(device) for image in on_host]
    boxes = boxes_of(on_host, 1)

    def host_views() -> Tensor:
        return torch.stack([crop_view(image, box, side) for image, box in zip(on_host, boxes, strict=True)])

    yield {
        "images": len(boxes),
        "equal_to_host": torch.equal(resize_crops(on_device, boxes, side).cpu(), host_views()),
        "device_ms": 1e3 * timed(lambda: resize_crops(on_device, boxes, side), scale.repeats, device),
        "host_ms": 1e3 * timed(host_views, max(1, scale.repeats // 4), "cpu"),
    }


def measure_packing(scale: Scale, device: str) -> Iterator[Row]:
    name, shape = next(iter(scale.towers.items()))
    context = multiprocessing.get_context("spawn" if device == "cuda" else "fork")
    first = 0.0
    for count in scale.processes:
        barrier, results = context.Barrier(count), context.Queue()
        arguments = (shape, replace(scale, towers={}), device, barrier, results)
        workers = [context.Process(target=_pack, args=arguments) for _ in range(count)]
        for worker in workers:
            worker.start()
        rates = [results.get(timeout=120) for _ in workers]
        for worker in workers:
            worker.join()
        row: Row = {"tower": name, "processes": count}
        if None in rates:
            yield row | {"error": "a process failed"}
            continue
        first = first or sum(rates)
        yield row | {"steps_per_s": sum(rates), "times_the_first": sum(rates) / first}


def _pack(shape: TowerShape, scale: Scale, device: str, barrier: Any, results: Any) -> None:
    """Train BOLT as one of the processes that share the GPU; put the steps a second, or ``None`` after a failure."""
    try:
        torch.set_num_threads(1)
        step = training_step(candidates.bolt(random_tower(shape, device), scale.sources).begin(), shape)
        photographs = random_photographs(scale, device)
        _, labels = random_batch(shape, scale.batch, device)

        def one(number: int) -> None:
            step(views_of(photographs, number, shape.image_size), labels)
            synchronise(device)

        one(0)
        barrier.wait(timeout=100)
        started, steps = time.perf_counter(), 0
        while time.perf_counter() - started < scale.seconds:
            one(steps)
            steps += 1
        results.put(steps / (time.perf_counter() - started))
    except Exception:
        traceback.print_exc()
        barrier.abort()
        results.put(None)


MEASUREMENTS: dict[str, Callable[[Scale, str], Iterator[Row]]] = {
    "rates": measure_rates, "steps": measure_steps, "bits": measure_bits,
    "views": measure_views, "packing": measure_packing,
}  # fmt: skip


def rows_of(name: str, scale: Scale, device: str) -> Iterator[Row]:
    """Yield the rows of a measurement; the last one has the error if the measurement fails."""
    if device == "cuda":
        torch.cuda.empty_cache()
    try:
        yield from MEASUREMENTS[name](scale, device)
    except Exception as error:
        traceback.print_exc()
        yield {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--scale", choices=list(SCALES), help="default: full on a GPU, tiny on a CPU")
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device, scale = arguments.device, arguments.scale or ("full" if arguments.device == "cuda" else "tiny")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, deterministic cuBLAS products are refused
    if device == "cpu":
        torch.set_num_threads(1)
    machine = torch.cuda.get_device_name() if device == "cuda" else "a CPU: the numbers say nothing about a GPU"
    print(f"{machine}, torch {torch.__version__}, scale {scale}")
    found: dict[str, Any] = {"device": machine, "torch": torch.__version__, "cuda": torch.version.cuda, "scale": scale}
    for name in arguments.only:
        print(f"\n{name}", flush=True)
        found[name] = []
        for row in rows_of(name, SCALES[scale], device):
            print("  " + ", ".join(f"{key} {_shown(value)}" for key, value in row.items()), flush=True)
            found[name].append(row)
            if arguments.output:  # after each row, so that what was measured is kept if the machine is lost
                arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    if failed := [name for name in arguments.only if any("error" in row for row in found[name])]:
        raise SystemExit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
