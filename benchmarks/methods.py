"""What one training step of every method costs, beside the least it could cost and the way it is usually written.

    python benchmarks/methods.py                       # both shapes, few blocks on a CPU, all on a GPU
    python benchmarks/methods.py --shape B/32 --rounds 9
    python benchmarks/methods.py --shape B/32 --rounds 3 --shots 4 16 --seeds 1  # some minutes on two cores

A method, its rival and the limit are measured together, each in a process of its own, so that its memory is its own.
The processes take turns, step by step.

    limit            the frozen network's forward and input gradient: no method that trains inside the tower can do less
    bolt             coefficients on 16 sources' bases; `bolt, written` rebuilds W0 + U diag(s) V^T as it stands
    atlas            16 task vectors; `atlas, plain` composes the weights under autograd, as the official code does
    lora             rank 16 on q, k, v, attention output and MLP; `lora, peft` is peft on open_clip's own tower
    bitfit, svf, lora_xs, vera, dora, layer_norm, full_finetune: the other methods that train inside the tower

Other methods take the step of one of these: tent, and 2SFS in its first stage, that of layer_norm; adamerging that of
atlas with one composed tower; meta_init that of full_finetune. prolip trains on stored features.

Memory is the highest resident (on a GPU: allocated) memory over all steps, beyond what was there once the frozen tower
and, for atlas, the task vectors were loaded. A second part times the methods on frozen features.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from step import SHAPES, make_step, random_bases, random_tower, rebuild
from torch import Tensor, nn

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import PROJECTION, layer_norm_names, matrix_names, tensor_names
from bolt.clip.tower import ImageTower
from bolt.clip.tower_shape import TowerShape
from bolt.methods import METHODS
from bolt.methods.bitfit import bias_names
from bolt.methods.common.adapters import AdapterSettings, attach_to_tower, bolt_coefficient_count, parameters_per_block
from bolt.methods.common.composed_tower import tensors_by_open_clip_name, trainable_composition
from bolt.methods.common.composition import Composition, compose_by_autograd
from bolt.methods.common.reparametrised import MatrixChange, reparametrised_tower, weight_matrices
from bolt.methods.lora_xs import SingularCore
from bolt.methods.svf import ShiftedMatrix
from bolt.methods.vera import random_projections, scaled_projection
from bolt.protocol import STRICT
from bolt.seeds import torch_generator
from bolt.spectral.spectral_linear import attach_coefficients
from bolt.task.support import batch_order, draw_support
from bolt.task.task import Support, Task

SOURCES, TOP_K = 16, 12
GOALS = {("atlas", "atlas, plain"): (0.25, 1.0)}
"""(candidate, rival): at most so much of its memory, and of its time."""

Forward = Callable[[Tensor], Tensor]
RANK, VERA_RANK = 16, 256
CLASSES, TESTS = 100, 10_000
"""Classes and test images of the second part."""
ON_FEATURES = (
    "linear_probe", "logistic_probe", "tip_adapter", "tip_adapter_f", "lp_plus_plus", "gda", "clip_adapter", "task_res",
    "clap", "cross_modal",
)  # fmt: skip


@dataclass(frozen=True)
class Ready:
    """A candidate, loaded but not begun: ``begin()`` gives its forward pass and what it trains."""

    begin: Callable[[], tuple[Forward, list[Tensor]]]
    update: bool = True


def limit(tower: ImageTower) -> Ready:
    # Where a few blocks stand for all, every candidate computes the first one's input gradient: that of the class
    # embedding. In a whole network the first block is one of many.
    return Ready(lambda: (tower, [tower.class_embedding.requires_grad_()]), update=False)


def bolt(tower: ImageTower, written: bool = False) -> Ready:
    bases, start = random_bases(tower, SOURCES, TOP_K)

    def begin() -> tuple[Forward, list[Tensor]]:
        spectral, coefficients = attach_coefficients(tower, bases, start)
        if written:
            spectral, coefficients = rebuild(tower, spectral, tower.shape.layers, as_written=True)
        spectral.class_embedding.requires_grad_()
        return spectral, list(coefficients.values())

    return Ready(begin)


def random_stacks(tower: ImageTower) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    stacks = {}
    for name, tensor in tensors_by_open_clip_name(tower, tower.state_dict_open_clip()).items():
        stacks[name] = (1e-3 * torch.randn(SOURCES, tensor.numel(), generator=generator)).to(tensor.device)
    return stacks


def atlas(tower: ImageTower) -> Ready:
    stacks = random_stacks(tower)

    def begin() -> tuple[Forward, list[Tensor]]:
        ours = trainable_composition(tower, Composition(tensors_by_open_clip_name(tower, stacks), stacks))
        return ours.encode, list(ours.parameters)

    return Ready(begin)


def atlas_plain(tower: ImageTower) -> Ready:
    stacks = random_stacks(tower)

    def begin() -> tuple[Forward, list[Tensor]]:
        base, path = tensors_by_open_clip_name(tower, stacks), tensor_names(tower.shape.layers)
        lambdas_NP = torch.zeros(SOURCES, len(stacks), device=tower.class_embedding.device, requires_grad=True)

        def encode(images: Tensor) -> Tensor:
            composed = compose_by_autograd(base, stacks, lambdas_NP)
            return torch.func.functional_call(tower, {path[name]: t for name, t in composed.items()}, (images,))

        return encode, [lambdas_NP]

    return Ready(begin)


def lora(tower: ImageTower, dora: bool = False) -> Ready:
    def begin() -> tuple[Forward, list[Tensor]]:
        twin = tower.copy()
        attach_to_tower(twin, AdapterSettings(), dora, "benchmark")
        adapters = [tensor for tensor in twin.parameters() if tensor.requires_grad]
        twin.class_embedding.requires_grad_()
        return twin, adapters

    return Ready(begin)


def lora_peft(tower: ImageTower) -> Ready:
    """peft on open_clip's own vision transformer, its fused attention as one target."""
    from open_clip.transformer import VisionTransformer, QuickGELU  # noqa: I001
    from peft import LoraConfig, get_peft_model

    shape = tower.shape
    visual = VisionTransformer(
        shape.image_size, shape.patch_size, shape.width, shape.layers, shape.heads, shape.mlp_width / shape.width,
        output_dim=shape.embed_dim, act_layer=QuickGELU,
    ).to(tower.class_embedding.device)  # fmt: skip
    visual.load_state_dict(tower.state_dict_open_clip())
    visual.requires_grad_(False)

    def begin() -> tuple[Forward, list[Tensor]]:
        adapted = get_peft_model(visual, LoraConfig(r=16, lora_alpha=16, target_modules=["attn", "c_fc", "c_proj"]))
        adapters = [tensor for tensor in adapted.parameters() if tensor.requires_grad]
        visual.class_embedding.requires_grad_()
        return adapted, adapters

    return Ready(begin)


def part_of_the_tower(tower: ImageTower, names: Iterable[str]) -> Ready:
    def begin() -> tuple[Forward, list[Tensor]]:
        twin = tower.copy(trainable=names)
        return twin, [tensor for tensor in twin.parameters() if tensor.requires_grad]

    return Ready(begin)


def reparametrised(tower: ImageTower, of: Callable[[dict[str, Tensor]], Mapping[str, MatrixChange]]) -> Ready:
    """Every weight matrix W becomes W + change, for the changes that ``of`` makes of the matrices."""
    changes = of(weight_matrices(tower))

    def begin() -> tuple[Forward, list[Tensor]]:
        trainable = reparametrised_tower(tower, changes)
        return trainable.encode, list(trainable.parameters)

    return Ready(begin)


def svf(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    return {name: ShiftedMatrix.of(weight) for name, weight in matrices.items()}


def lora_xs(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    return {name: SingularCore.of(weight, RANK, float(RANK)) for name, weight in matrices.items()}


def vera(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    a, b = random_projections((weight.shape for weight in matrices.values()), VERA_RANK, 0)
    return {name: scaled_projection(weight, a, b, 0.1) for name, weight in matrices.items()}


CANDIDATES: dict[str, Callable[[ImageTower], Ready]] = {
    "limit": limit,
    "bolt": bolt,
    "bolt, written": lambda tower: bolt(tower, written=True),
    "atlas": atlas,
    "atlas, plain": atlas_plain,
    "lora": lora,
    "lora, peft": lora_peft,
    "dora": lambda tower: lora(tower, dora=True),
    "bitfit": lambda tower: part_of_the_tower(tower, bias_names(tower.state_dict_open_clip())),
    "svf": lambda tower: reparametrised(tower, svf),
    "lora_xs": lambda tower: reparametrised(tower, lora_xs),
    "vera": lambda tower: reparametrised(tower, vera),
    "layer_norm": lambda tower: part_of_the_tower(tower, layer_norm_names(tower.state_dict_open_clip())),
    "full_finetune": lambda tower: part_of_the_tower(tower, tower.state_dict_open_clip()),
}


def _live(pipe: Connection, name: str, shape_name: str, blocks: int, arguments: argparse.Namespace) -> None:
    """A candidate's process: load, say how much it trains, then a step for every message; the memory at last."""
    torch.set_num_threads(arguments.threads)
    shape, batch, _, _ = SHAPES[shape_name]
    device = arguments.device
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(batch, 3, 224, 224, generator=generator).to(device)
    labels = torch.randint(0, 100, (batch,), generator=generator).to(device)
    ready = CANDIDATES[name](random_tower(replace(shape, layers=blocks), device))
    before = _resident(device)
    _reset_peak(device)
    forward, trained = ready.begin()
    step = make_step(forward, trained, images, labels, ready.update)
    pipe.send(sum(tensor.numel() for tensor in trained) if ready.update else 0)
    while pipe.recv():
        started = time.perf_counter()
        step()
        if device != "cpu":
            torch.cuda.synchronize()
        pipe.send(time.perf_counter() - started)
    pipe.send(_peak(device) - before)


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def _resident(device: str) -> float:
    return _status("VmRSS") if device == "cpu" else torch.cuda.memory_allocated() / 2**20


def _reset_peak(device: str) -> None:
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")
    else:
        torch.cuda.reset_peak_memory_stats()


def _peak(device: str) -> float:
    return _status("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated() / 2**20


def trained_numbers(shape: TowerShape) -> dict[str, int]:
    """How many numbers each candidate trains in a network of that shape, from arithmetic."""
    with torch.device("meta"):
        state = ImageTower(shape).state_dict_open_clip()
    matrices = matrix_names(state)
    bolt_count, settings = bolt_coefficient_count(shape, SOURCES), AdapterSettings()
    return {
        "limit": 0,
        "bolt": bolt_count,
        "bolt, written": bolt_count,
        "atlas": SOURCES * len(state),
        "atlas, plain": SOURCES * len(state),
        "lora": shape.layers * parameters_per_block(shape, settings),
        # One adapter on the fused query, key and value, (3W, W), where ours are three.
        "lora, peft": shape.layers * (parameters_per_block(shape, settings) - 2 * settings.rank * shape.width),
        "dora": shape.layers * parameters_per_block(shape, settings, dora=True),
        "bitfit": sum(state[name].numel() for name in bias_names(state)),
        "svf": sum(min(state[name].shape) for name in matrices),
        "lora_xs": len(matrices) * RANK**2,
        # The projection is stored transposed: its rows are the columns.
        "vera": sum(VERA_RANK + state[name].shape[name == PROJECTION] for name in matrices),
        "layer_norm": sum(state[name].numel() for name in layer_norm_names(state)),
        "full_finetune": sum(tensor.numel() for tensor in state.values()),
    }


@dataclass(frozen=True)
class Steps:
    """The measured steps of one candidate, and of the limit in the same rounds.

    Attributes:
        seconds, limit_seconds: of every round; the latter is empty if the limit is not measured.
        memory: highest memory in MiB, beyond what was there before the first step.
    """

    seconds: list[float]
    limit_seconds: list[float]
    memory: float


def in_turns(names: Sequence[str], shape_name: str, blocks: int, arguments: argparse.Namespace) -> dict[str, Steps]:
    """The candidates' steps, one step of each in turn, each candidate in a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipes, processes, counts = {}, [], {}
    for name in names:
        ours, theirs = context.Pipe()
        process = context.Process(target=_live, args=(theirs, name, shape_name, blocks, arguments), daemon=True)
        process.start()
        theirs.close()  # so that reading from a process that has died raises EOFError
        pipes[name] = ours
        processes.append(process)
        counts[name] = ours.recv()  # one after the other: loading is not to run out of memory
    computed = trained_numbers(replace(SHAPES[shape_name][0], layers=blocks))
    assert counts == {name: computed[name] for name in names}, f"{counts} trained, {computed} computed"
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(arguments.rounds + 1):
        for name, pipe in pipes.items():
            pipe.send(True)
            seconds = pipe.recv()
            if round_:  # the first one warms up
                times[name].append(seconds)
    memory = {}
    for name, pipe in pipes.items():
        pipe.send(False)
        memory[name] = pipe.recv()
    for process in processes:
        process.join()
    return {name: Steps(times[name], times.get("limit", []), memory[name]) for name in names}


def measure(shape_name: str, arguments: argparse.Namespace) -> float | None:
    """One shape: a method, its rival and the limit at a time. Returns a BOLT step's seconds, scaled to all blocks.

    All fourteen candidates at once took more than 20 GiB at B/32.
    """
    shape, batch, few, _ = SHAPES[shape_name]
    blocks = arguments.blocks or (few if arguments.device == "cpu" else shape.layers)
    names = [name for name in CANDIDATES if name in (arguments.only or CANDIDATES)]
    limit = [name for name in names if name == "limit"]
    found: dict[str, Steps] = {}
    for _, group in itertools.groupby(names[len(limit) :] or limit, key=lambda name: name.partition(",")[0]):
        found = in_turns(list(dict.fromkeys([*limit, *group])), shape_name, blocks, arguments) | found
    times = {name: steps.seconds for name, steps in found.items()}
    memory = {name: steps.memory for name, steps in found.items()}

    def ratio(name: str, rival: str) -> float:
        of_rival = found[name].limit_seconds if rival == "limit" else times[rival]
        return statistics.median(a / b for a, b in zip(times[name], of_rival, strict=True))

    tokens = batch * ((shape.image_size // shape.patch_size) ** 2 + 1)
    print(
        f"\nViT-{shape_name}, {blocks} of {shape.layers} blocks, {tokens} tokens, {SOURCES} sources, "
        f"{arguments.device}, {arguments.threads} threads, {arguments.rounds} rounds, medians"
    )
    print(f"{'':15}{'ms a step':>10}{'x limit':>9}{'peak MiB':>10}{'trained, all blocks':>21}")
    whole = trained_numbers(shape)
    for name in names:
        slower = f"{ratio(name, 'limit'):9.2f}" if "limit" in names else f"{'':9}"
        print(f"{name:15}{1e3 * statistics.median(times[name]):10.1f}{slower}{memory[name]:10.0f}{whole[name]:21,}")
    for name, rival in (("bolt", "bolt, written"), ("atlas", "atlas, plain"), ("lora", "lora, peft")):
        if name not in names or rival not in names:
            continue
        share = memory[name] / memory[rival]
        line = f"{name} takes {ratio(name, rival):.2f} of the time and {share:.2f} of the memory of {rival!r}"
        goal = GOALS.get((name, rival))
        print(line + (f"  (goals {goal[1]:g} and {goal[0]:g})" if goal else ""))
        if goal and "limit" in names:
            beyond = (memory[name] - memory["limit"]) / (memory[rival] - memory["limit"])
            print(
                f"  beyond the limit's, which are the activations that every method keeps, {beyond:.2f} of the memory"
            )
    return statistics.median(times["bolt"]) * shape.layers / blocks if "bolt" in names else None


def features_part(step_seconds: float, batch: int, shots: Sequence[int], seeds: Sequence[int], threads: int) -> None:
    """Some k and seeds of one dataset for the methods on frozen features, against one cell that trains in the tower."""
    cells, of_k = len(shots) * len(seeds), ", ".join(map(str, shots))
    print(
        f"\nmethods on frozen features: {CLASSES} classes, k = {of_k}, {len(seeds)} seeds, {TESTS:,} test images scored"
    )
    total = 0.0
    measured = partial(on_features, shots=tuple(shots), seeds=tuple(seeds), threads=threads)
    # A process for each method: memory that a method has freed would hide the next one's.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for name, (seconds, peak) in zip(ON_FEATURES, pool.map(measured, ON_FEATURES), strict=True):
            total += seconds
            line = f"  {name:14}{seconds:8.1f} s of processor time for {cells} cells, peak {peak:6.0f} MiB"
            print(line, flush=True)
    print(f"  {'together':14}{total:8.1f} s of processor time for {cells * len(ON_FEATURES)} cells")
    for k in (1, 16):
        steps = METHODS["bolt"].configure({}).steps(CLASSES * k)
        cell = steps * step_seconds
        print(
            f"  one BOLT cell at ViT-B/32, k = {k}: {steps} steps of {batch}, {cell:,.0f} s by the step above "
            f"(alpha and scoring not counted): together they take {total / cell:.3f} of it"
            + ("  (goal < 1)" if k == 16 else "")
        )


def on_features(name: str, shots: Sequence[int], seeds: Sequence[int], threads: int) -> tuple[float, float]:
    """Processor seconds of a method's cells on frozen features, and the highest memory in MiB beyond what was there."""
    torch.set_num_threads(threads)
    width, views, most = 512, 20, max(shots)
    shape = replace(SHAPES["B/32"][0], layers=1)
    # A real backbone whose tower is never run: these methods read features alone.
    backbone = Backbone(
        "B/32", random_tower(shape, "cpu"), nn.Identity, lambda texts: torch.zeros(0), 100.0, (0,) * 3, (1,) * 3
    )
    noise = torch_generator("benchmark")
    centres = torch.randn(CLASSES, width, generator=noise)
    head = nn.functional.normalize(centres + torch.randn(CLASSES, width, generator=noise), dim=-1)
    labels = torch.arange(CLASSES).repeat(most).numpy()
    stored = centres[torch.from_numpy(labels)] + 2 * torch.randn(views + 1, len(labels), width, generator=noise)
    drawn = torch.randint(CLASSES, (TESTS,), generator=noise)
    tests_ND = centres[drawn] + 2 * torch.randn(TESTS, width, generator=noise)
    method = METHODS[name]
    started, before = time.process_time(), _resident("cpu")
    _reset_peak("cpu")
    for k, seed in itertools.product(shots, seeds):
        task = Task(backbone, head, support_of(labels, stored, k, seed), None, STRICT, "benchmark", seed)
        adapted = method.run(task, method.configure({}))
        with torch.inference_mode():
            adapted.classify(tests_ND)
    return time.process_time() - started, _peak("cpu") - before


def support_of(labels: NDArray[np.int64], stored_VND: Tensor, k: int, seed: int) -> Support:
    """A support whose frozen features are at hand."""
    rows = torch.from_numpy(draw_support(labels, k, dataset="benchmark", seed=seed))
    return Support(
        torch.from_numpy(labels)[rows],
        rows,
        pixels=_never,
        features=lambda view: stored_VND[view, rows],
        order=lambda epoch: batch_order(len(rows), dataset="benchmark", seed=seed, epoch=epoch),
    )


def _never(view: int, rows: Tensor) -> Tensor:
    raise AssertionError("a method on frozen features asked for pixels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), action="append", help="default: both")
    parser.add_argument("--blocks", type=int, help="transformer blocks (default: few on a CPU, all on a GPU)")
    parser.add_argument("--only", choices=list(CANDIDATES), action="append", help="candidates; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shots", type=int, nargs="+", default=(1, 2, 4, 8, 16), help="k of the second part")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3), help="seeds of the second part")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    seconds = {shape: measure(shape, arguments) for shape in arguments.shape or SHAPES}
    if (step := seconds.get("B/32")) is not None and not arguments.only:
        features_part(step, SHAPES["B/32"][1], arguments.shots, arguments.seeds, arguments.threads)


if __name__ == "__main__":
    main()
