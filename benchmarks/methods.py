"""Compare a training step of every method with the least that it could cost, and with the usual way to write it.

    python benchmarks/methods.py                       # both shapes, few blocks on a CPU, all on a GPU
    python benchmarks/methods.py --shape B/32 --rounds 9

A method, its rival and the limit take the steps of a cell in turns, on a task with random weights and images. Each has
a process of its own, so that its memory can be measured.

    limit            the frozen network's forward pass, and the gradient down to the first block's first matrix, whose
                     bias is trained: no method that trains all blocks can do less
    bolt             coefficients on 16 sources' bases; `bolt, dense` rebuilds W0 + (U * s) V^T under autograd
    atlas            16 task vectors; `atlas, plain` composes the weights under autograd, as the official code does
    lora             rank 16 on q, k, v, attention output and MLP; `lora, peft` is peft on open_clip's own tower
    two_stage        its first stage, which trains the layer norms
    kgcoop           the text tower alone, with the features of images; it takes a prompt of each of 100 classes in
                     every step, as clipfit, maple and promptsrc do

Other methods take the same step as one of these: adamerging that of atlas with one composed tower, meta_init that of
full_finetune, coop and, for each image, tpt that of kgcoop. layer_norm and tent take that of two_stage, with further
forward passes.

Memory is the highest resident (on a GPU: allocated) one over all steps but the first, beyond the loaded towers and, for
atlas, the task vectors.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import NamedTuple, cast

import torch
from torch import Tensor

from benchmarks.common import command, median_ratio, print_head, print_row
from benchmarks.steps import SOURCES, Script, during, random_backbone, random_task, settings_of, synchronise
from bolt.methods import METHODS
from bolt.methods.bolt import pooled_start
from bolt.methods.common.composition import stack_task_vectors
from bolt.spectral.spectral_linear import SpectralLinear
from bolt.task.task import Task
from bolt.training.adaptation import Trainable, train, trainable_tower
from bolt.training.loop import TrainingRecipe

BATCHES = {"B/32": (32, 4), "L/14": (16, 2)}
"""For each model, the images of a step and the blocks on a CPU."""


def limit(task: Task, batch: int) -> Callable[[], object]:
    tower = task.backbone.tower.copy(["transformer.resblocks.0.attn.in_proj_bias"])
    return lambda: train(task, trainable_tower(tower), TrainingRecipe(batch_size=batch))


def rebuilt(task: Task, weights: Callable[[], dict[str, Tensor]], trained: Iterable[Tensor]) -> Trainable:
    """Return the tower with weights that are made for every forward pass, in the graph of autograd."""
    tower = task.backbone.tower

    def encode(images: Tensor) -> Tensor:
        return cast(Tensor, torch.func.functional_call(tower, weights(), (images,)))

    return Trainable(encode, [*trained], lambda: tower)


def bolt_dense(task: Task, batch: int) -> Callable[[], object]:
    def training() -> None:
        settings = settings_of("bolt", batch)
        start = pooled_start(task, settings)
        paths = start.tower.matrix_paths().values()
        spectral = {f"{path}.weight": cast(SpectralLinear, start.tower.get_submodule(path)) for path in paths}

        def weights() -> dict[str, Tensor]:
            return {name: of.weight + of.u * of.coefficients @ of.v.mT for name, of in spectral.items()}

        train(task, rebuilt(task, weights, start.coefficients.values()), settings)

    return training


def task_vectors(task: Task) -> Mapping[str, Tensor]:
    """Return the task vectors as ``atlas`` stacks and caches them."""
    sources, tower = task.sources, task.backbone.tower
    assert sources is not None
    names = tower.tensor_paths()
    return sources.cached(("task vectors", "float32"), lambda: stack_task_vectors(tower, sources, names, torch.float32))


def compose_by_autograd(
    base: Mapping[str, Tensor], stacks: Mapping[str, Tensor], coefficients_NP: Tensor
) -> dict[str, Tensor]:
    """Return the weights of a ``Composition``, composed by a sum that autograd differentiates.

    The sums are in the base's type. Stacks of another type are converted, and autograd keeps the converted copies for
    its backward pass.
    """
    composed = {}
    for position, (name, stack) in enumerate(stacks.items()):
        rows = zip(coefficients_NP[:, position], stack, strict=True)
        terms = [coefficient * vector.to(base[name].dtype).view(base[name].shape) for coefficient, vector in rows]
        composed[name] = base[name] + sum(terms)
    return composed


def atlas_plain(task: Task, batch: int) -> Callable[[], object]:
    path, loaded = task.backbone.tower.tensor_paths(), task_vectors(task)
    stacks = {path[name]: stack for name, stack in loaded.items()}
    base = {path[name]: tensor for name, tensor in task.backbone.tower.own_tensors().items()}

    def training() -> None:
        lambdas_NP = torch.zeros(SOURCES, len(stacks), device=task.backbone.device, requires_grad=True)
        weights = partial(compose_by_autograd, base, stacks, lambdas_NP)
        train(task, rebuilt(task, weights, [lambdas_NP]), settings_of("atlas", batch))

    return training


def lora_peft(task: Task, batch: int) -> Callable[[], object]:
    """Attach peft to open_clip's own vision transformer, whose fused attention is one target."""
    from open_clip.transformer import QuickGELU, VisionTransformer
    from peft import LoraConfig, get_peft_model

    tower, shape = task.backbone.tower, task.backbone.tower.shape
    visual = VisionTransformer(
        shape.image_size, shape.patch_size, shape.width, shape.layers, shape.heads, shape.mlp_width / shape.width,
        output_dim=shape.embed_dim, act_layer=QuickGELU,
    ).to(task.backbone.device)  # fmt: skip
    visual.load_state_dict(tower.state_dict_open_clip())

    def training() -> None:
        adapted = get_peft_model(visual, LoraConfig(r=16, lora_alpha=16, target_modules=["attn", "c_fc", "c_proj"]))
        adapters = [tensor for tensor in adapted.parameters() if tensor.requires_grad]
        train(task, Trainable(adapted, adapters, lambda: tower), settings_of("lora", batch))

    return training


RIVALS: dict[str, Callable[[Task, int], Callable[[], object]]] = {
    "limit": limit, "bolt, dense": bolt_dense, "atlas, plain": atlas_plain, "lora, peft": lora_peft,
}  # fmt: skip
"""What is no method; a name with a comma is a rival of the method before the comma."""
MEASURED = (
    *("bolt", "atlas", "lora", "dora", "bitfit", "svf", "lora_xs", "vera", "two_stage", "kgcoop", "clipfit", "maple"),
    *("promptsrc", "full_finetune"),
)


def load(name: str, task: Task, batch: int) -> Callable[[], object]:
    """Load what a candidate reads, and return its training."""
    if name in RIVALS:
        return RIVALS[name](task, batch)
    if name == "atlas":
        task_vectors(task)
    settings = settings_of(name, batch)
    if METHODS[name].trains_text(settings):
        task.backbone.text_tower  # noqa: B018  # loads it
    return lambda: METHODS[name].adapt(task, settings)


def _live(pipe: Connection, name: str, model: str, blocks: int | None, arguments: argparse.Namespace) -> None:
    """Run a candidate's process: send how much it trains, then the seconds of each step asked for, then its memory."""
    torch.set_num_threads(arguments.threads)
    cuda, batch = arguments.device != "cpu", BATCHES[model][0]
    training = load(name, random_task(random_backbone(model, arguments.device, blocks), batch), batch)
    ctypes.CDLL(None).malloc_trim(0)  # gives back freed memory, which the steps would use again
    before = torch.cuda.memory_allocated() / 2**20 if cuda else _status("VmRSS")

    def script() -> Script[None]:
        trained = yield  # the first step warms up
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        pipe.send(sum(map(Tensor.numel, trained)))
        while pipe.recv():
            begun = time.perf_counter()
            yield
            synchronise(arguments.device)
            pipe.send(time.perf_counter() - begun)
        pipe.send((torch.cuda.max_memory_allocated() / 2**20 if cuda else _status("VmHWM")) - before)

    during(training, script())


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


class Steps(NamedTuple):
    """The seconds of a candidate's steps, its highest memory in MiB, and the number of trained parameters."""

    seconds: list[float]
    memory: float
    trained: int


def in_turns(names: Sequence[str], model: str, blocks: int | None, arguments: argparse.Namespace) -> dict[str, Steps]:
    """Run the candidates' steps in turn, each candidate in a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipes, trained = dict[str, Connection](), {}
    for name in names:
        pipes[name], theirs = context.Pipe()
        context.Process(target=_live, args=(theirs, name, model, blocks, arguments), daemon=True).start()
        theirs.close()  # so that reading from a process that has died raises EOFError
        trained[name] = pipes[name].recv()  # waits, because several that load at once may take too much memory
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name, pipe in pipes.items():
            pipe.send(True)
            times[name].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(False)
    return {name: Steps(times[name], pipe.recv(), trained[name]) for name, pipe in pipes.items()}


def measure(model: str, arguments: argparse.Namespace) -> None:
    """Measure a method, its rival and the limit at a time: all at once took more than 20 GiB at B/32."""
    batch, few = BATCHES[model]
    blocks = arguments.blocks or (few if arguments.device == "cpu" else None)
    print(f"\n{blocks or 'all'} blocks, batches of {batch}, {SOURCES} sources, medians of {arguments.rounds} rounds")
    print_head(f"ViT-{model}", ["ms a step", "x limit", "peak MiB", "trained"])
    for number, method in enumerate(arguments.only or MEASURED):
        rivals = [name for name in RIVALS if name.startswith(f"{method},")]
        found = in_turns(["limit", method, *rivals], model, blocks, arguments)
        for name, steps in [*found.items()][number > 0 :]:  # the limit once
            ratio = median_ratio(steps.seconds, found["limit"].seconds)
            milliseconds = f"{1e3 * median(steps.seconds):.1f}"
            print_row(name, [milliseconds, f"{ratio:.2f}", f"{steps.memory:.0f}", f"{steps.trained:,}"])
        for rival in rivals:
            own, other = found[method], found[rival]
            ratio, memory = median_ratio(own.seconds, other.seconds), own.memory / other.memory
            print_row(f"times {rival!r}", ["", f"{ratio:.2f}", f"{memory:.2f}", ""])


def main() -> None:
    parser = command(__doc__, rounds=5, threads=torch.get_num_threads())
    parser.add_argument("--shape", choices=list(BATCHES), action="append", help="default: both")
    parser.add_argument("--blocks", type=int, help="transformer blocks (default: few on a CPU, all on a GPU)")
    parser.add_argument("--only", choices=MEASURED, nargs="+", help="methods, with their rivals; default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    for model in arguments.shape or BATCHES:
        measure(model, arguments)


if __name__ == "__main__":
    main()
