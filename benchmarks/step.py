"""One training step of BOLT against what it could cost at least, and against the ways it is usually written.

    python benchmarks/step.py                      # both shapes, few blocks on a CPU, all on a GPU
    python benchmarks/step.py --shape B/32 --blocks 4 --rounds 9

Compared, interleaved round by round, medians:
    limit     the frozen network's forward and input gradient: no method that trains inside the tower can do less
    bolt      merged forward, factored gradient (bolt.spectral.spectral_linear), clipping and AdamW included
    dense     W0 + (U * s) V^T rebuilt under plain autograd, the best way to write it; clipping and AdamW included
    written   W0 + U diag(s) V^T with diag(s) as a matrix, as the formula and the authors' released code have it
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import matrix_module_paths
from bolt.clip.tower import ImageTower, matrix_modules
from bolt.clip.tower_shape import TowerShape
from bolt.protocol import STRICT
from bolt.spectral.bases import Basis
from bolt.spectral.directions import directions_per_source
from bolt.spectral.spectral_linear import SpectralLinear, attach_coefficients
from bolt.task.task import ClassText, Support, Task

SHAPES = {
    "B/32": (TowerShape(224, 32, 768, 12, 12, 3072, 512, "quick_gelu"), 32, 4),
    "L/14": (TowerShape(224, 14, 1024, 24, 16, 4096, 768, "quick_gelu"), 16, 2),
}
"""Shape, batch, and blocks on a CPU."""


class DenseLinear(nn.Module):
    """The rival: the merged weight rebuilt inside the graph, so autograd forms a dense weight gradient."""

    def __init__(self, spectral: SpectralLinear, as_written: bool = False) -> None:
        super().__init__()
        self.as_written = as_written
        self.weight, self.bias, self.u, self.v = spectral.weight, spectral.bias, spectral.u, spectral.v
        self.coefficients = nn.Parameter(spectral.coefficients.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.u @ torch.diag(self.coefficients) if self.as_written else self.u * self.coefficients
        return F.linear(x, self.weight + scaled @ self.v.mT, self.bias)


def rebuild(
    tower: ImageTower, spectral: ImageTower, blocks: int, *, as_written: bool
) -> tuple[ImageTower, dict[str, nn.Parameter]]:
    """Return a tower whose matrices are :class:`DenseLinear`, with the coefficients of ``spectral``."""
    twin, coefficients = tower.copy(), {}
    for matrix, path in matrix_module_paths(blocks).items():
        owner, _, attribute = path.rpartition(".")
        module = DenseLinear(cast(SpectralLinear, spectral.get_submodule(path)), as_written)
        setattr(twin.get_submodule(owner), attribute, module)
        coefficients[matrix] = module.coefficients
    return twin, coefficients


def random_tower(shape: TowerShape, device: str) -> ImageTower:
    """Make a frozen tower with weights of a realistic size."""
    generator = torch.Generator(device).manual_seed(0)
    tower = ImageTower(shape).to(device)
    with torch.no_grad():
        for name, tensor in tower.named_parameters():
            if tensor.ndim > 1:
                tensor.normal_(generator=generator).mul_(tensor[0].numel() ** -0.5)
            else:
                tensor.fill_(float("ln_" in name and name.endswith("weight")))
    return tower.requires_grad_(False)


def random_bases(tower: ImageTower, sources: int, top_k: int) -> tuple[dict[str, Basis], dict[str, Tensor]]:
    """Draw small coefficients, and orthonormal bases of the rank that this number of sources gives."""
    device = tower.class_embedding.device
    generator = torch.Generator(device).manual_seed(1)
    bases, start = {}, {}
    for name, linear in matrix_modules(tower).items():
        m, n = linear.weight.shape if name != "proj" else linear.weight.T.shape
        rank = sources * directions_per_source(top_k, min(m, n), sources)
        random = (torch.empty(size, rank, device=device).normal_(generator=generator) for size in (m, n))
        bases[name] = Basis(*(torch.linalg.qr(each)[0] for each in random))
        start[name] = 0.05 * torch.empty(rank, device=device).normal_(generator=generator)
    return bases, start


def random_task(tower: ImageTower) -> Task:
    """Return a task of 100 class names; its text tower has the share of CLIP's blocks that the image tower has."""
    import open_clip  # takes seconds to import
    from open_clip.tokenizer import SimpleTokenizer

    embed, device = tower.shape.embed_dim, tower.class_embedding.device
    whole = next(shape.layers for shape, _, _ in SHAPES.values() if shape.embed_dim == embed)
    image = {"image_size": 32, "patch_size": 16, "layers": 1, "width": 64}  # is thrown away
    text = {"width": embed, "heads": embed // 64, "layers": max(1, 12 * tower.shape.layers // whole)}
    model = open_clip.CLIP(embed, image, text, quick_gelu=True)
    backbone = Backbone("random", tower, lambda: model, SimpleTokenizer(), 100.0, (0.5,) * 3, (0.5,) * 3)
    words = ClassText(tuple(f"thing number {number}" for number in range(100)), ("a photo of a {}.",))
    support = Support(*(torch.zeros(0, dtype=torch.long),) * 2, _no_images, _no_images, _no_images)
    head_CD = backbone.to(device).zero_shot_head(words.class_names, words.templates)
    backbone.text_tower  # noqa: B018  # loaded before memory is measured
    return Task(backbone, head_CD, support, None, STRICT, "benchmark", 1, text=words)


def _no_images(*arguments: object) -> Tensor:
    raise AssertionError("the benchmark gives the images itself")


def make_step(
    tower: nn.Module,
    trained: Iterable[Tensor],
    images: Tensor,
    labels: Tensor,
    update: bool,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[[], None]:
    """Return a step: forward, loss, backward and (if ``update``) clipping and the optimiser's step.

    ``loss`` is of images and labels; by default it is the cross-entropy of the tower's features and a random head.
    """
    trained = list(trained)
    optimiser = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)
    head = F.normalize(torch.randn(100, 512 if images.shape[0] == 32 else 768, device=images.device), dim=-1)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        if loss is None:
            features = F.normalize(tower(images), dim=-1)
            F.cross_entropy(100 * features @ head.T, labels).backward()
        else:
            loss(images, labels).backward()
        if update:
            torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
            optimiser.step()

    return step


def measure(name: str, arguments: argparse.Namespace) -> None:
    """Build the rivals of one shape, check that they agree, time them."""
    shape, batch, few_blocks = SHAPES[name]
    device = arguments.device
    blocks = arguments.blocks or (few_blocks if device == "cpu" else shape.layers)
    shape = TowerShape(**{**vars(shape), "layers": blocks})
    tower = random_tower(shape, device)
    bases, start = random_bases(tower, arguments.sources, 12)
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(batch, 3, 224, 224, generator=generator).to(device)
    labels = torch.randint(0, 100, (batch,), generator=generator).to(device)

    # In a whole network the first block is one of many; where a few stand for all, every rival computes its input
    # gradient (that of the class embedding), or leaving it out would flatter whoever need not.
    embedded = tower.copy(["class_embedding"])
    limit = embedded.copy(["class_embedding"])
    spectral, coefficients = attach_coefficients(embedded, bases, start)
    dense, rebuilt = rebuild(embedded, spectral, blocks, as_written=False)
    written, rewritten = rebuild(embedded, spectral, blocks, as_written=True)
    if blocks < SHAPES[name][0].layers:
        for candidate in (spectral, dense, written):
            candidate.class_embedding.requires_grad_()

    for candidate in (spectral, dense):
        F.normalize(candidate(images), dim=-1)[:, 0].sum().backward()
    ours, theirs = (
        torch.cat([tensor.grad for tensor in which.values() if tensor.grad is not None])
        for which in (coefficients, rebuilt)
    )
    error = float((ours - theirs).norm() / theirs.norm())

    steps = {
        "limit": make_step(limit, [limit.class_embedding], images, labels, update=False),
        "bolt": make_step(spectral, coefficients.values(), images, labels, update=True),
        "dense": make_step(dense, rebuilt.values(), images, labels, update=True),
        "written": make_step(written, rewritten.values(), images, labels, update=True),
    }
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {rival: [] for rival in steps}
    for round_ in range(arguments.rounds + 1):
        for rival, step in steps.items():
            started = clock()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            if round_:  # the first round warms up
                times[rival].append(clock() - started)
    median = {rival: statistics.median(values) for rival, values in times.items()}
    # Neighbours in time share whatever else the machine was doing, so ratios are taken round by round.
    ratio = {
        rival: statistics.median(b / t for b, t in zip(times["bolt"], times[rival], strict=True)) for rival in steps
    }
    tokens = batch * ((224 // shape.patch_size) ** 2 + 1)
    print(
        f"\nViT-{name}, {blocks} of {SHAPES[name][0].layers} blocks, {tokens} tokens, rank "
        f"{max(basis.rank for basis in bases.values())}, {device}, {torch.get_num_threads()} threads, "
        f"{arguments.rounds} rounds, {arguments.clock} time"
    )
    print(f"{'':8}{'ms':>9}   bolt is")
    for rival, seconds in median.items():
        print(f"{rival:8}{1e3 * seconds:9.1f}   {ratio[rival]:.2f} x")
    print(f"gradient error of bolt against dense: {error:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), action="append", help="default: both")
    parser.add_argument("--blocks", type=int, help="transformer blocks (default: few on a CPU, all on a GPU)")
    parser.add_argument("--sources", type=int, default=16, help="rank of the bases is 12 times this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: on a machine shared with others")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    for shape in arguments.shape or SHAPES:
        measure(shape, arguments)


if __name__ == "__main__":
    main()
