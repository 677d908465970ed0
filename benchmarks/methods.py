"""Compare a training step of every method with the least that it could cost, and with the usual way to write it.

    python benchmarks/methods.py                       # both shapes, few blocks on a CPU, all on a GPU
    python benchmarks/methods.py --shape B/32 --rounds 9

A method, its rivals and the limit are measured together. Each has its own process, so that its memory can be measured.
The processes take turns, step by step.

    limit            the frozen network's forward and input gradient: no method that trains inside the tower can do less
    bolt             coefficients on 16 sources' bases; `bolt, dense` rebuilds W0 + (U * s) V^T under autograd
    atlas            16 task vectors; `atlas, plain` composes the weights under autograd, as the official code does
    lora             rank 16 on q, k, v, attention output and MLP; `lora, peft` is peft on open_clip's own tower
    bitfit, svf, lora_xs, vera, dora, layer_norm, full_finetune: the other methods that train inside the tower
    clipfit, maple, promptsrc: with the text tower, which takes a prompt of each of 100 classes in every step
    kgcoop           the text tower alone; the features of the images are given

Other methods take the same step as one of these. tent and the first stage of 2SFS take the step of layer_norm,
adamerging that of atlas with one composed tower, and meta_init that of full_finetune. coop takes the step of kgcoop,
and tpt takes it for each image. prolip trains on stored features.

Memory is the highest resident (on a GPU: allocated) memory over all steps, minus the memory before the first step. At
that moment the frozen tower and, for atlas, the task vectors are loaded.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.candidates import CANDIDATES, SHAPES, SOURCES, random_batch, random_tower, training_step
from benchmarks.common import command, median_ratio, seconds

BATCHES = {"B/32": (32, 4), "L/14": (16, 2)}
"""For each shape, the images of a step and the blocks on a CPU."""


def _live(pipe: Connection, name: str, shape_name: str, blocks: int, arguments: argparse.Namespace) -> None:
    """Run a candidate's process: send how much it trains, then the seconds of each step asked for, then its memory."""
    torch.set_num_threads(arguments.threads)
    device, shape = arguments.device, SHAPES[shape_name]
    images, labels = random_batch(shape, BATCHES[shape_name][0], device)
    ready = CANDIDATES[name](random_tower(replace(shape, layers=blocks), device))
    before = _status("VmRSS") if device == "cpu" else torch.cuda.memory_allocated() / 2**20
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    else:
        torch.cuda.reset_peak_memory_stats()
    begun = ready.begin()
    step = training_step(begun, shape, ready.update)
    pipe.send(sum(tensor.numel() for tensor in begun.trained) if ready.update else 0)

    def whole_step() -> None:
        step(images, labels)
        if device != "cpu":
            torch.cuda.synchronize()

    while pipe.recv():
        pipe.send(seconds(whole_step))
    pipe.send((_status("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated() / 2**20) - before)


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


@dataclass(frozen=True)
class Steps:
    """The measured steps of one candidate, and of the limit in the same rounds.

    Attributes:
        seconds: of every round.
        limit_seconds: the limit's seconds of every round; empty if the limit is not measured.
        memory: highest memory in MiB, beyond what was there before the first step.
        trained: the number of trained parameters.
    """

    seconds: list[float]
    limit_seconds: list[float]
    memory: float
    trained: int


def in_turns(names: Sequence[str], shape_name: str, blocks: int, arguments: argparse.Namespace) -> dict[str, Steps]:
    """Run the candidates' steps in turn, each candidate in a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipes, processes, counts = {}, [], {}
    for name in names:
        ours, theirs = context.Pipe()
        process = context.Process(target=_live, args=(theirs, name, shape_name, blocks, arguments), daemon=True)
        process.start()
        theirs.close()  # so that reading from a process that has died raises EOFError
        pipes[name] = ours
        processes.append(process)
        counts[name] = ours.recv()  # waits, because several that load at once may take too much memory
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.rounds + 1):
        for name, pipe in pipes.items():
            pipe.send(True)
            times[name].append(pipe.recv())
    memory = {}
    for name, pipe in pipes.items():
        pipe.send(False)
        memory[name] = pipe.recv()
        del times[name][0]  # the first one warms up
    for process in processes:
        process.join()
    return {name: Steps(times[name], times.get("limit", []), memory[name], counts[name]) for name in names}


def measure(shape_name: str, arguments: argparse.Namespace) -> None:
    """Measure one shape: a method, its rivals and the limit at a time.

    All candidates at once took more than 20 GiB at B/32.
    """
    shape, (batch, few) = SHAPES[shape_name], BATCHES[shape_name]
    blocks = arguments.blocks or (few if arguments.device == "cpu" else shape.layers)
    names = [name for name in CANDIDATES if name in (arguments.only or CANDIDATES)]
    limit = [name for name in names if name == "limit"]
    found: dict[str, Steps] = {}
    for _, group in itertools.groupby(names[len(limit) :] or limit, key=lambda name: name.partition(",")[0]):
        found = in_turns(list(dict.fromkeys([*limit, *group])), shape_name, blocks, arguments) | found

    tokens = batch * ((shape.image_size // shape.patch_size) ** 2 + 1)
    print(
        f"\nViT-{shape_name}, {blocks} of {shape.layers} blocks, {tokens} tokens, {SOURCES} sources, "
        f"{arguments.device}, {arguments.threads} threads, {arguments.rounds} rounds, medians"
    )
    print(f"{'':15}{'ms a step':>10}{'x limit':>9}{'peak MiB':>10}{'trained':>15}")
    for name in names:
        steps = found[name]
        slower = f"{median_ratio(steps.seconds, steps.limit_seconds):9.2f}" if limit else f"{'':9}"
        milliseconds = 1e3 * statistics.median(steps.seconds)
        print(f"{name:15}{milliseconds:10.1f}{slower}{steps.memory:10.0f}{steps.trained:15,}")
    for rival in names:
        name, comma, _ = rival.partition(",")
        if comma and name in names:
            own, other = found[name], found[rival]
            time, memory = median_ratio(own.seconds, other.seconds), own.memory / other.memory
            print(f"{name} takes {time:.2f} of the time and {memory:.2f} of the memory of {rival!r}")


def main() -> None:
    parser = command(__doc__, rounds=5, threads=torch.get_num_threads())
    parser.add_argument("--shape", choices=list(BATCHES), action="append", help="default: both")
    parser.add_argument("--blocks", type=int, help="transformer blocks (default: few on a CPU, all on a GPU)")
    parser.add_argument("--only", choices=list(CANDIDATES), nargs="+", help="candidates; default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    for shape in arguments.shape or BATCHES:
        measure(shape, arguments)


if __name__ == "__main__":
    main()
