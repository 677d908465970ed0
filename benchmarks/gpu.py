"""What a GPU does with this project: five measurements with synthetic weights and images, in about ten minutes.

    python benchmarks/gpu.py                      # on a CPU the same measurements run tiny, to show that they work
    python benchmarks/gpu.py --only steps views > gpu.jsonl

Prints a line of JSON for each row, as soon as it is measured. A measurement that fails has a line with the error.

    rates      10^12 operations a second of matrix products and of forward passes, in every precision
    steps      a step of four methods: milliseconds on the clock and on the GPU, and the share of both; reserved memory
    bits       a cell of 50 steps twice, with PyTorch's default kernels and with those that cells use: equal bits?
    views      a batch of random crops made on the device and on the host: equal? Milliseconds of both
    packing    steps a second of 1, 4, 8 and 16 processes that share the GPU; to compare, start NVIDIA's multi-process
               service first
"""

import json
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import command
from benchmarks.steps import Script, during, random_backbone, random_task, synchronise, training_of
from bolt.clip.augment import SUPPORT_CROP, Box, crop_view, draw_box
from bolt.clip.backbone import Backbone
from bolt.clip.batched_resize import resize_crops
from bolt.clip.precision import forward_pass
from bolt.clip.tower import matrix_modules
from bolt.protocol import Precision

Row = dict[str, Any]


class Scale(NamedTuple):
    """How much is measured: models with a number of blocks (or all), steps, and processes that share the GPU."""

    models: Mapping[str, int | None]
    batch: int
    cell_steps: int
    repeats: int
    processes: tuple[int, ...]
    seconds: float

    def backbones(self, device: str) -> Iterator[Backbone]:
        return (random_backbone(model, device, blocks) for model, blocks in self.models.items())


SCALES = {
    "cuda": Scale({"B/32": None, "B/16": None, "L/14": None}, 32, 50, 20, (1, 4, 8, 16), 8.0),
    "cpu": Scale({"S/32": 1}, 4, 2, 1, (2,), 0.1),
}


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


def measure_rates(scale: Scale, device: str) -> Iterator[Row]:
    for backbone in scale.backbones(device):
        tower, shape = backbone.tower, backbone.tower.shape
        images = torch.randn(scale.batch, 3, shape.image_size, shape.image_size, device=device)
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
            row: Row = {"tower": backbone.name, "precision": precision}
            tower.precision = precision
            with forward_pass(precision, torch.device(device)), torch.no_grad():
                for column, (work, operations) in works.items():
                    row[column] = operations / 1e12 / timed(work, scale.repeats, device)
            yield row


def measure_steps(scale: Scale, device: str) -> Iterator[Row]:
    for backbone in scale.backbones(device):
        for method in ("bolt", "lora", "full_finetune", "atlas"):
            row: Row = {"tower": backbone.name, "method": method}
            try:
                task = random_task(backbone, scale.batch)
                for precision in precisions(device):
                    if device == "cuda":
                        torch.cuda.empty_cache()
                        torch.cuda.reset_peak_memory_stats()
                    there = replace(task, backbone=backbone.at(precision))
                    steps = during(training_of(method, there, scale.batch), _timed_steps(scale, device))
                    yield row | {"precision": precision} | steps
            except torch.OutOfMemoryError:
                yield row | {"error": "out of memory"}


def a_step(steps: int, device: str) -> Script[float]:
    """Take some steps, and return the seconds of one by the clock."""
    synchronise(device)
    started = time.perf_counter()
    for _ in range(steps):
        yield
    synchronise(device)
    return (time.perf_counter() - started) / steps


def _timed_steps(scale: Scale, device: str) -> Script[Row]:
    """Time steps by the clock and on the GPU, after one step that does not count."""
    yield
    wall = yield from a_step(scale.repeats, device)
    row: Row = {"wall_ms": 1e3 * wall}
    if device == "cuda":
        repeats = min(5, scale.repeats)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(repeats):
                yield
            torch.cuda.synchronize()
        computing = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / repeats
        row |= {"computing_ms": 1e3 * computing, "busy_share": min(1.0, computing / wall)}
        row["reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
    return row


def measure_bits(scale: Scale, device: str) -> Iterator[Row]:
    for backbone in scale.backbones(device):
        for strict in (False, True):
            training = _bolt_on_views(backbone.at(precisions(device)[-2]), scale, strict)
            (one, seconds), (other, _) = (during(training, _cell_script(scale, device)) for _ in range(2))
            largest = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
            equal = all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
            row: Row = {"tower": backbone.name, "deterministic": strict, "equal_bits": equal}
            yield row | {"largest_difference": largest, "step_ms": 1e3 * seconds}


def _cell_script(scale: Scale, device: str) -> Script[tuple[list[Tensor], float]]:
    """Take the steps of a cell; return the trained tensors, and the seconds of a step."""
    trained = yield
    seconds = yield from a_step(scale.cell_steps - 1, device)
    return [tensor.detach().cpu() for tensor in trained], seconds


def _bolt_on_views(backbone: Backbone, scale: Scale, strict: bool = True) -> Callable[[], object]:
    """Return BOLT's training on crops made on the device, if ``strict`` with the deterministic kernels of cells."""
    photographs = random_photographs(scale.batch, str(backbone.device))

    def pixels(view: int, rows: Tensor) -> Tensor:
        if not strict:
            torch.use_deterministic_algorithms(False)  # until the end of the step
        return resize_crops(photographs, boxes_of(photographs, int(rows[0])), backbone.image_size)

    return training_of("bolt", random_task(backbone, scale.batch, pixels), scale.batch)


def random_photographs(count: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(256, (3, 375, 500), generator=generator, dtype=torch.uint8).to(device) for _ in range(count)]


def boxes_of(photographs: Sequence[Tensor], first: int) -> list[Box]:
    sides = (image.shape[1:] for image in photographs)
    return [draw_box(height, width, first + row, SUPPORT_CROP) for row, (height, width) in enumerate(sides)]


def measure_views(scale: Scale, device: str) -> Iterator[Row]:
    side = 224
    on_host = random_photographs(scale.batch, "cpu")
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
    context = multiprocessing.get_context("spawn" if device == "cuda" else "fork")
    first = 0.0
    for count in scale.processes:
        with context.Manager() as manager, ProcessPoolExecutor(count, context) as pool:
            rate = sum(pool.map(partial(_pack, scale, device), [manager.Barrier(count, timeout=100)] * count))
        first = first or rate
        yield {"tower": next(iter(scale.models)), "processes": count, "steps_per_s": rate, "times_first": rate / first}


def _pack(scale: Scale, device: str, barrier: threading.Barrier) -> float:
    """Train BOLT as one of the processes that share the GPU; return the steps a second."""

    def script() -> Script[float]:
        yield
        barrier.wait()
        started, steps = time.perf_counter(), 0
        while time.perf_counter() - started < scale.seconds:
            yield
            synchronise(device)
            steps += 1
        return steps / (time.perf_counter() - started)

    torch.set_num_threads(1)
    return during(_bolt_on_views(next(scale.backbones(device)), scale), script())


MEASURES = (measure_rates, measure_steps, measure_bits, measure_views, measure_packing)
MEASUREMENTS = {measure.__name__.removeprefix("measure_"): measure for measure in MEASURES}


def rows_of(name: str, scale: Scale, device: str) -> Iterator[Row]:
    """Yield the rows of a measurement; the last one has the error if the measurement fails."""
    if device == "cuda":
        torch.cuda.empty_cache()
    try:
        yield from MEASUREMENTS[name](scale, device)
    except Exception as error:
        traceback.print_exc()
        yield {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = arguments.device
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, deterministic cuBLAS products are refused
    if device == "cpu":
        torch.set_num_threads(1)
    machine = torch.cuda.get_device_name() if device == "cuda" else "a CPU: the numbers say nothing about a GPU"
    print(f"{machine}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    failed = set[str]()
    for name in arguments.only:
        for row in rows_of(name, SCALES[device], device):
            rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}
            print(json.dumps({"measured": name, **rounded}), flush=True)
            failed |= {name} if "error" in row else set()
    if failed:
        raise SystemExit(f"not measured: {', '.join(sorted(failed))}")


if __name__ == "__main__":
    main()
