"""One training step of every method, against the least it could cost and the way it is usually written.

    python benchmarks/methods.py                       # both shapes, few blocks on a CPU, all on a GPU
    python benchmarks/methods.py --shape B/32 --rounds 9

A method, its rival and the limit are measured together, each in a process of its own, so that its memory is its own.
The processes take turns, step by step.

    limit            the frozen network's forward and input gradient: no method that trains inside the tower can do less
    bolt             coefficients on 16 sources' bases; `bolt, written` rebuilds W0 + U diag(s) V^T as it stands
    atlas            16 task vectors; `atlas, plain` composes the weights under autograd, as the official code does
    lora             rank 16 on q, k, v, attention output and MLP; `lora, peft` is peft on open_clip's own tower
    bitfit, svf, lora_xs, vera, dora, layer_norm, full_finetune: the other methods that train inside the tower
    clipfit, maple, promptsrc: with the text tower, which takes a prompt of each of 100 classes in every step
    kgcoop           the text tower alone; the features of the images are given

Other methods take the step of one of these: tent, and 2SFS in its first stage, that of layer_norm; adamerging that of
atlas with one composed tower; meta_init that of full_finetune; coop and, for each image, tpt that of kgcoop. prolip
trains on stored features.

Memory is the highest resident (on a GPU: allocated) memory over all steps, beyond what was there once the frozen tower
and, for atlas, the task vectors were loaded.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch
from plain_composition import compose_by_autograd
from step import SHAPES, make_step, random_bases, random_task, random_tower, rebuild
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.tensor_names import layer_norm_names
from bolt.clip.tower import ImageTower
from bolt.methods import METHODS
from bolt.methods.bitfit import bias_names
from bolt.methods.common.adapters import AdapterSettings, attach_to_tower
from bolt.methods.common.composed_tower import tensors_by_open_clip_name, trainable_composition
from bolt.methods.common.composition import Composition
from bolt.methods.common.prompts import LearnedPrompts, word_embeddings
from bolt.methods.common.reparametrised import MatrixChange, reparametrised_tower, weight_matrices
from bolt.methods.lora_xs import SingularCore
from bolt.methods.svf import ShiftedMatrix
from bolt.methods.vera import random_projections, scaled_projection
from bolt.spectral.spectral_linear import attach_coefficients

SOURCES, TOP_K = 16, 12
Forward = Callable[[Tensor], Tensor]
RANK, VERA_RANK = 16, 256


class Begun(NamedTuple):
    """A candidate's forward pass and what it trains; its loss of images and labels, if it is not the usual one."""

    forward: Forward
    trained: list[Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Ready:
    """A candidate, loaded but not begun."""

    begin: Callable[[], Begun]
    update: bool = True


def limit(tower: ImageTower) -> Ready:
    # Where a few blocks stand for all, every candidate computes the first one's input gradient: that of the class
    # embedding. In a whole network the first block is one of many.
    return Ready(lambda: Begun(tower, [tower.class_embedding.requires_grad_()]), update=False)


def bolt(tower: ImageTower, sources: int = SOURCES, written: bool = False) -> Ready:
    bases, start = random_bases(tower, sources, TOP_K)

    def begin() -> Begun:
        spectral, coefficients = attach_coefficients(tower, bases, start)
        if written:
            spectral, coefficients = rebuild(tower, spectral, tower.shape.layers, as_written=True)
        spectral.class_embedding.requires_grad_()
        return Begun(spectral, list(coefficients.values()))

    return Ready(begin)


def random_stacks(tower: ImageTower, sources: int) -> dict[str, Tensor]:
    generator = torch.Generator(tower.class_embedding.device).manual_seed(3)
    return {
        name: 1e-3 * torch.randn(sources, tensor.numel(), device=tensor.device, generator=generator)
        for name, tensor in tensors_by_open_clip_name(tower, tower.state_dict_open_clip()).items()
    }


def atlas(tower: ImageTower, sources: int = SOURCES) -> Ready:
    stacks = random_stacks(tower, sources)

    def begin() -> Begun:
        ours = trainable_composition(tower, Composition(tensors_by_open_clip_name(tower, stacks), stacks))
        return Begun(ours.encode, list(ours.parameters))

    return Ready(begin)


def atlas_plain(tower: ImageTower) -> Ready:
    stacks = random_stacks(tower, SOURCES)

    def begin() -> Begun:
        base, path = tensors_by_open_clip_name(tower, stacks), tower.tensor_paths()
        lambdas_NP = torch.zeros(SOURCES, len(stacks), device=tower.class_embedding.device, requires_grad=True)

        def encode(images: Tensor) -> Tensor:
            composed = compose_by_autograd(base, stacks, lambdas_NP)
            return torch.func.functional_call(tower, {path[name]: t for name, t in composed.items()}, (images,))

        return Begun(encode, [lambdas_NP])

    return Ready(begin)


def lora(tower: ImageTower, dora: bool = False) -> Ready:
    def begin() -> Begun:
        twin = tower.copy()
        attach_to_tower(twin, AdapterSettings(), dora, "benchmark")
        adapters = [tensor for tensor in twin.parameters() if tensor.requires_grad]
        twin.class_embedding.requires_grad_()
        return Begun(twin, adapters)

    return Ready(begin)


def lora_peft(tower: ImageTower) -> Ready:
    """Attach peft to open_clip's own vision transformer, its fused attention as one target."""
    from open_clip.transformer import VisionTransformer, QuickGELU  # noqa: I001
    from peft import LoraConfig, get_peft_model

    shape = tower.shape
    visual = VisionTransformer(
        shape.image_size, shape.patch_size, shape.width, shape.layers, shape.heads, shape.mlp_width / shape.width,
        output_dim=shape.embed_dim, act_layer=QuickGELU,
    ).to(tower.class_embedding.device)  # fmt: skip
    visual.load_state_dict(tower.state_dict_open_clip())
    visual.requires_grad_(False)

    def begin() -> Begun:
        adapted = get_peft_model(visual, LoraConfig(r=16, lora_alpha=16, target_modules=["attn", "c_fc", "c_proj"]))
        adapters = [tensor for tensor in adapted.parameters() if tensor.requires_grad]
        visual.class_embedding.requires_grad_()
        return Begun(adapted, adapters)

    return Ready(begin)


def part_of_the_tower(tower: ImageTower, names: Iterable[str]) -> Ready:
    def begin() -> Begun:
        twin = tower.copy(trainable=names)
        return Begun(twin, [tensor for tensor in twin.parameters() if tensor.requires_grad])

    return Ready(begin)


def reparametrised(tower: ImageTower, of: Callable[[dict[str, Tensor]], Mapping[str, MatrixChange]]) -> Ready:
    """Train W + change for every weight matrix W; ``of`` makes the changes of the matrices."""
    changes = of(weight_matrices(tower))

    def begin() -> Begun:
        trainable = reparametrised_tower(tower, changes)
        return Begun(trainable.encode, list(trainable.parameters))

    return Ready(begin)


def svf(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    return {name: ShiftedMatrix.of(weight) for name, weight in matrices.items()}


def lora_xs(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    return {name: SingularCore.of(weight, RANK, float(RANK)) for name, weight in matrices.items()}


def vera(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    a, b = random_projections((weight.shape for weight in matrices.values()), VERA_RANK, 0)
    return {name: scaled_projection(weight, a, b, 0.1) for name, weight in matrices.items()}


def with_text(tower: ImageTower, name: str) -> Ready:
    """Train MaPLe, PromptSRC or CLIPFit as the method of that name does."""
    task, method = random_task(tower), importlib.import_module(f"bolt.methods.{name}")

    def begin() -> Begun:
        model, _ = method.trainable(task, METHODS[name].settings_class())

        def cross_entropy(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(model.classify(model.encode(images)), labels)

        return Begun(model.encode, list(model.parameters), model.loss or cross_entropy)

    return Ready(begin)


def prompts_alone(tower: ImageTower) -> Ready:
    """Train context words as CoOp, KgCoOp and TPT do: through the text tower, with the features of the images given."""
    task = random_task(tower)

    def begin() -> Begun:
        prompts = LearnedPrompts(task.backbone, task.class_text.class_names, 4)
        context = word_embeddings(task.backbone, "a photo of a").clone().requires_grad_()

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            features = images.flatten(1)[:, : tower.shape.embed_dim]
            return F.cross_entropy(100 * F.normalize(features, dim=-1) @ prompts.encode(context).T, labels)

        return Begun(tower, [context], loss)

    return Ready(begin)


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
    "kgcoop": prompts_alone,
    "clipfit": lambda tower: with_text(tower, "clipfit"),
    "maple": lambda tower: with_text(tower, "maple"),
    "promptsrc": lambda tower: with_text(tower, "promptsrc"),
    "full_finetune": lambda tower: part_of_the_tower(tower, tower.state_dict_open_clip()),
}


def _live(pipe: Connection, name: str, shape_name: str, blocks: int, arguments: argparse.Namespace) -> None:
    """Run a candidate's process: load, say how much it trains, a step for every message, and at last the memory."""
    torch.set_num_threads(arguments.threads)
    shape, batch, _ = SHAPES[shape_name]
    device = arguments.device
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(batch, 3, 224, 224, generator=generator).to(device)
    labels = torch.randint(0, 100, (batch,), generator=generator).to(device)
    ready = CANDIDATES[name](random_tower(replace(shape, layers=blocks), device))
    before = _resident(device)
    _reset_peak(device)
    begun = ready.begin()
    step = make_step(begun.forward, begun.trained, images, labels, ready.update, begun.loss)
    pipe.send(sum(tensor.numel() for tensor in begun.trained) if ready.update else 0)
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


@dataclass(frozen=True)
class Steps:
    """The measured steps of one candidate, and of the limit in the same rounds.

    Attributes:
        seconds, limit_seconds: of every round; the latter is empty if the limit is not measured.
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
        counts[name] = ours.recv()  # one after the other: loading is not to run out of memory
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
    return {name: Steps(times[name], times.get("limit", []), memory[name], counts[name]) for name in names}


def measure(shape_name: str, arguments: argparse.Namespace) -> None:
    """Measure one shape: a method, its rival and the limit at a time.

    All candidates at once took more than 20 GiB at B/32.
    """
    shape, batch, few = SHAPES[shape_name]
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
    print(f"{'':15}{'ms a step':>10}{'x limit':>9}{'peak MiB':>10}{'trained':>15}")
    for name in names:
        slower = f"{ratio(name, 'limit'):9.2f}" if "limit" in names else f"{'':9}"
        milliseconds, trained = 1e3 * statistics.median(times[name]), found[name].trained
        print(f"{name:15}{milliseconds:10.1f}{slower}{memory[name]:10.0f}{trained:15,}")
    for name, rival in (("bolt", "bolt, written"), ("atlas", "atlas, plain"), ("lora", "lora, peft")):
        if name not in names or rival not in names:
            continue
        share = memory[name] / memory[rival]
        print(f"{name} takes {ratio(name, rival):.2f} of the time and {share:.2f} of the memory of {rival!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), action="append", help="default: both")
    parser.add_argument("--blocks", type=int, help="transformer blocks (default: few on a CPU, all on a GPU)")
    parser.add_argument("--only", choices=list(CANDIDATES), action="append", help="candidates; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for shape in arguments.shape or SHAPES:
        measure(shape, arguments)


if __name__ == "__main__":
    main()
