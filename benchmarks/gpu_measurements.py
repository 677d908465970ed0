"""The measurements of ``gpu.py``, one function each. Not a command."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_steps import (
    METHODS,
    Row,
    Scale,
    bolt_tower,
    precisions,
    random_batch,
    random_tower,
    synchronise,
    training_step,
)
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.augment import SUPPORT_CROP, Box, crop_view, draw_box
from bolt.clip.batched_resize import resize_crops
from bolt.clip.precision import forward_pass
from bolt.clip.tower import matrix_modules
from bolt.clip.tower_shape import TowerShape
from bolt.methods.common.composition import Composition


def timed(work: Callable[[], Any], repeats: int, device: str) -> float:
    """Seconds of one call by the clock, after one call that does not count."""
    work()
    synchronise(device)
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronise(device)
    return (time.perf_counter() - started) / repeats


def seconds_computing(work: Callable[[], Any], repeats: int, device: str) -> float | None:
    """Seconds that the GPU's kernels take in one call, by torch's profiler; ``None`` on a CPU."""
    if device != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            work()
        synchronise(device)
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / repeats


def measure_rates(scale: Scale, device: str) -> list[Row]:
    rows = []
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
            with forward_pass(precision, torch.device(device)), torch.no_grad():
                for column, (work, operations) in works.items():
                    row[column] = operations / 1e12 / timed(work, scale.repeats, device)
            rows.append(row)
    return rows


def measure_steps(scale: Scale, device: str) -> list[Row]:
    rows = []
    for tower_name, shape in scale.towers.items():
        for method in METHODS:
            row: Row = {"tower": tower_name, "method": method}
            try:
                rows += [row | measured for measured in _measure_steps_of(shape, method, scale, device)]
            except torch.OutOfMemoryError:
                rows.append(row | {"error": "out of memory"})
            if device == "cuda":
                torch.cuda.empty_cache()
    return rows


def _measure_steps_of(shape: TowerShape, method: str, scale: Scale, device: str) -> Iterator[Row]:
    trainable = METHODS[method](random_tower(shape, device), scale.sources)
    images, labels = random_batch(shape, scale.batch, device)
    for precision in precisions(device):
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step = partial(training_step(trainable, shape, precision), images, labels)
        wall = timed(step, scale.repeats, device)
        computing = seconds_computing(step, min(5, scale.repeats), device)
        yield {
            "precision": precision,
            "wall_ms": 1e3 * wall,
            "computing_ms": None if computing is None else 1e3 * computing,
            "busy_share": None if computing is None else min(1.0, computing / wall),
            "reserved_mib": torch.cuda.max_memory_reserved() / 2**20 if device == "cuda" else None,
        }


def measure_bits(scale: Scale, device: str) -> list[Row]:
    rows = []
    for name, shape in scale.towers.items():
        for strict in (False, True):
            one, other = (_cell(shape, scale, device, strict) for _ in range(2))
            largest = max(float((a - b).abs().max()) for a, b in zip(one[0], other[0], strict=True))
            equal = all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
            row = {"tower": name, "deterministic": strict, "equal_bits": equal, "largest_difference": largest}
            rows.append({**row, "seconds": one[1], "steps": scale.cell_steps})
    return rows


def _cell(shape: TowerShape, scale: Scale, device: str, strict: bool) -> tuple[list[Tensor], float]:
    """Train BOLT for some steps on views made on the device: the coefficients at the end, and the seconds."""
    trainable = bolt_tower(random_tower(shape, device), scale.sources)
    step = training_step(trainable, shape, precisions(device)[-2], deterministic=strict)
    photographs = random_photographs(scale, device)
    _, labels = random_batch(shape, scale.batch, device)
    synchronise(device)
    started = time.perf_counter()
    for number in range(scale.cell_steps):
        step(views_of(photographs, number, shape.image_size), labels)
    synchronise(device)
    return [tensor.detach().cpu() for tensor in trainable.parameters], time.perf_counter() - started


def random_photographs(scale: Scale, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    height, width = scale.photograph
    shape = (3, height, width)
    return [torch.randint(256, shape, generator=generator, dtype=torch.uint8).to(device) for _ in range(scale.batch)]


def boxes_of(photographs: Sequence[Tensor], view: int) -> list[Box]:
    count = len(photographs)
    return [draw_box(*image.shape[1:], view * count + row, SUPPORT_CROP) for row, image in enumerate(photographs)]


def views_of(photographs: Sequence[Tensor], view: int, side: int) -> Tensor:
    """A batch of random crops, made where the photographs are: float32 (B, 3, S, S)."""
    return resize_crops(photographs, boxes_of(photographs, view), side).float().div_(255).sub_(0.5)


def measure_transfers(scale: Scale, device: str) -> list[Row]:
    side = max(shape.image_size for shape in scale.towers.values())
    rows = []
    for what, images in (("a batch of views", scale.batch), ("a batch of test images", 8 * scale.batch)):
        pageable = torch.zeros(images, 3, side, side, dtype=torch.uint8)
        row: Row = {"what": what, "mb": pageable.numel() / 1e6}
        for memory in ("pageable", "pinned"):
            if device != "cuda" and memory == "pinned":
                row[f"{memory}_ms"] = None
                continue
            held = pageable.pin_memory() if memory == "pinned" else pageable
            target = torch.empty_like(held, device=device)
            row[f"{memory}_ms"] = 1e3 * timed(partial(target.copy_, held, non_blocking=True), scale.repeats, device)
        rows.append(row)
    return rows


def measure_atlas(scale: Scale, device: str) -> list[Row]:
    rows = []
    for name, shape in scale.towers.items():
        numbers = shape.width * shape.mlp_width
        for storage in (torch.float32, torch.float16):
            base = torch.randn(numbers, device=device)
            stack_NM = torch.randn(scale.sources, numbers, device=device).to(storage)
            composition = Composition({"weight": base}, {"weight": stack_NM})
            composed = composition._composed[0]
            lambda_N1, out = torch.randn(scale.sources, 1, device=device), torch.empty_like(base)
            size = stack_NM.numel() * stack_NM.element_size()
            row: Row = {"tower": name, "storage": str(storage).removeprefix("torch.")}
            for column, work in (
                ("compose_gb_s", partial(composed.compose, lambda_N1, out)),
                ("contract_gb_s", partial(composed.contract, base)),
            ):
                row[column] = size / 1e9 / timed(work, scale.repeats, device)
            rows.append(row)
    return rows


def measure_views(scale: Scale, device: str) -> list[Row]:
    side = max(shape.image_size for shape in scale.towers.values())
    on_host = random_photographs(scale, "cpu")
    on_device = [image.to(device) for image in on_host]
    boxes = boxes_of(on_host, 1)

    def host_views() -> Tensor:
        return torch.stack([crop_view(image, box, side) for image, box in zip(on_host, boxes, strict=True)])

    return [
        {
            "images": len(boxes),
            "equal_to_host": torch.equal(resize_crops(on_device, boxes, side).cpu(), host_views()),
            "device_ms": 1e3 * timed(lambda: resize_crops(on_device, boxes, side), scale.repeats, device),
            "host_ms": 1e3 * timed(host_views, max(1, scale.repeats // 4), "cpu"),
        }
    ]


def measure_packing(scale: Scale, device: str) -> list[Row]:
    name, shape = next(iter(scale.towers.items()))
    context = multiprocessing.get_context("spawn" if device == "cuda" else "fork")
    rows: list[Row] = []
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
            rows.append(row | {"error": "a process failed"})
            continue
        row["steps_per_s"] = sum(rates)
        rows.append(row | {"times_the_first": row["steps_per_s"] / rows[0]["steps_per_s"] if rows else 1.0})
    return rows


def _pack(shape: TowerShape, scale: Scale, device: str, barrier: Any, results: Any) -> None:
    """One of the processes that share the GPU: steps a second of BOLT with views of its own, ``None`` if it fails."""
    try:
        torch.set_num_threads(1)
        step = training_step(bolt_tower(random_tower(shape, device), scale.sources), shape)
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


MEASUREMENTS: dict[str, Callable[[Scale, str], list[Row]]] = {
    "rates": measure_rates, "steps": measure_steps, "bits": measure_bits, "transfers": measure_transfers,
    "atlas": measure_atlas, "views": measure_views, "packing": measure_packing,
}  # fmt: skip
