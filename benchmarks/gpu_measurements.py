"""The measurements of ``gpu.py``, one function each. Not a command."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import methods
import torch
from step import random_tower
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.augment import SUPPORT_CROP, Box, crop_view, draw_box
from bolt.clip.batched_resize import resize_crops
from bolt.clip.precision import forward_pass
from bolt.clip.precision import training_step as as_a_cell
from bolt.clip.tower import ImageTower, matrix_modules
from bolt.clip.tower_shape import TowerShape
from bolt.protocol import Precision

Row = dict[str, Any]
CLASSES = 100
METHODS: dict[str, Callable[[ImageTower, int], methods.Ready]] = {
    "bolt": methods.bolt,
    "lora": lambda tower, sources: methods.lora(tower),
    "full_finetune": lambda tower, sources: methods.CANDIDATES["full_finetune"](tower),
    "atlas": methods.atlas,
}


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        towers: by name.
        batch: images of a training step.
        cell_steps: steps of the cell that is repeated.
        repeats: how often a step, a copy or a product is timed.
        sources: task vectors of aTLAS, and sources of BOLT's bases.
        photograph: height and width of the images that views are made of.
        processes: how many share the GPU, one after the other.
        seconds: how long they do.
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
        {
            "B/32": TowerShape(224, 32, 768, 12, 12, 3072, 512, "quick_gelu"),
            "B/16": TowerShape(224, 16, 768, 12, 12, 3072, 512, "quick_gelu"),
            "L/14": TowerShape(224, 14, 1024, 24, 16, 4096, 768, "quick_gelu"),
        },
        batch=32, cell_steps=50, repeats=20, sources=16, photograph=(375, 500), processes=(1, 4, 8, 16), seconds=8.0,
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
    """TF32 exists on GPUs only."""
    return ("float32", "tf32", "bfloat16") if device == "cuda" else ("float32", "bfloat16")


def training_step(
    begun: methods.Begun,
    shape: TowerShape,
    precision: Precision = "float32",
    deterministic: bool = True,
) -> Callable[[Tensor, Tensor], None]:
    """Return ``step(images, labels)``: forward, backward, clipping and AdamW.

    It computes as a cell does, with deterministic kernels on a GPU unless ``deterministic`` is false.
    """
    trained = begun.trained
    device = trained[0].device
    head_CD = torch.empty(CLASSES, shape.embed_dim, device=device)
    head_CD = F.normalize(head_CD.normal_(generator=torch.Generator(device).manual_seed(2)), dim=-1)
    optimiser = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)

    def step(images_B3SS: Tensor, labels_B: Tensor) -> None:
        with as_a_cell(precision, device) if deterministic else nullcontext():
            optimiser.zero_grad(set_to_none=True)
            with forward_pass(precision, device):
                features_BD = begun.forward(images_B3SS)
            F.cross_entropy(100 * F.normalize(features_BD.float(), dim=-1) @ head_CD.T, labels_B).backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
            optimiser.step()

    return step


def random_batch(shape: TowerShape, batch: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(batch, 3, shape.image_size, shape.image_size, generator=generator)
    return images.to(device), torch.randint(CLASSES, (batch,), generator=generator).to(device)


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
            if device == "cuda":
                torch.cuda.empty_cache()


def _measure_steps_of(shape: TowerShape, method: str, scale: Scale, device: str) -> Iterator[Row]:
    tower = random_tower(shape, device)
    ready = METHODS[method](tower, scale.sources)
    images, labels = random_batch(shape, scale.batch, device)
    for precision in precisions(device):
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        tower.precision = precision  # before it begins: the method's copy of the tower inherits it
        step = partial(training_step(ready.begin(), shape, precision), images, labels)
        wall = timed(step, scale.repeats, device)
        computing = seconds_computing(step, min(5, scale.repeats), device)
        yield {
            "precision": precision,
            "wall_ms": 1e3 * wall,
            "computing_ms": None if computing is None else 1e3 * computing,
            "busy_share": None if computing is None else min(1.0, computing / wall),
            "reserved_mib": torch.cuda.max_memory_reserved() / 2**20 if device == "cuda" else None,
        }


def measure_bits(scale: Scale, device: str) -> Iterator[Row]:
    for name, shape in scale.towers.items():
        for strict in (False, True):
            one, other = (_cell(shape, scale, device, strict) for _ in range(2))
            largest = max(float((a - b).abs().max()) for a, b in zip(one[0], other[0], strict=True))
            equal = all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
            row = {"tower": name, "deterministic": strict, "equal_bits": equal, "largest_difference": largest}
            yield {**row, "seconds": one[1], "steps": scale.cell_steps}


def _cell(shape: TowerShape, scale: Scale, device: str, strict: bool) -> tuple[list[Tensor], float]:
    """Train BOLT for some steps on views made on the device: the coefficients at the end, and the seconds."""
    begun = methods.bolt(random_tower(shape, device), scale.sources).begin()
    step = training_step(begun, shape, precisions(device)[-2], deterministic=strict)
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
    height, width = scale.photograph
    shape = (3, height, width)
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
    """One of the processes that share the GPU: steps a second of BOLT with views of its own, ``None`` if it fails."""
    try:
        torch.set_num_threads(1)
        step = training_step(methods.bolt(random_tower(shape, device), scale.sources).begin(), shape)
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
