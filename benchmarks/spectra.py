"""What the leave-one-out bases cost, against recomputing everything for every run.

    python benchmarks/spectra.py                # ViT-B/32: 49 matrices, 16 sources
    python benchmarks/spectra.py --blocks 3     # fewer blocks, scaled up

Task vectors are synthetic: a decaying spectrum of 32 random directions plus noise, float32.

Ours, measured on every matrix:
    once      the leading directions of every source's matrices, and the domain's sum
    target    one target's basis and pooled coefficients, from its sources' directions and the sum less its own
The rival, as the authors' code does it in every run: a full SVD of every source's every matrix, both polar factors, and
every source projected into the basis. It is measured in the same process on one block's matrices and the projection
with two sources, and scaled by counts.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bolt.spectral.bases import diagonal_coefficients, orthonormal_basis
from bolt.spectral.directions import Directions, directions_per_source, top_directions
from bolt.spectral.sources import PooledBasis, pooled_basis
from bolt.spectral.task_vector_sum import add_task_vector, leave_out_mean

WIDTH, EMBED, BLOCKS = 768, 512, 12
BLOCK_SHAPES = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
PROJECTION_SHAPE = (WIDTH, EMBED)
TOP_K = 12
MEASURED_SOURCES = 2
TARGETS, SHOTS = 17, 5


def task_vector(shape: tuple[int, int], seed: int) -> Tensor:
    """A float32 matrix with a decaying low-rank part and noise."""
    generator = torch.Generator().manual_seed(seed)
    m, n = shape
    strength = torch.logspace(0, -1.5, 32)
    u, v = (torch.randn(size, 32, generator=generator) / size**0.5 for size in (m, n))
    return 0.1 * (u * strength @ v.T) + 1e-5 * torch.randn(m, n, generator=generator)


clock = time.perf_counter


def timed(work: Callable[[], object]) -> float:
    started = clock()
    work()
    return clock() - started


class Memory:
    """How far this process's memory rises above where it is now; NaN where the system does not tell (not Linux)."""

    def __init__(self) -> None:
        self.before = math.nan
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
            self.before = self._read("VmRSS")
        except OSError:
            pass

    def risen(self) -> float:
        """MiB."""
        return math.nan if math.isnan(self.before) else self._read("VmHWM") - self.before

    def _read(self, field: str) -> float:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024


class Domain:
    """Directions and sum of one matrix over all sources, as a spectra stage keeps them."""

    def __init__(self, shape: tuple[int, int], seed: int, sources: int) -> None:
        self.shape, self.seed, self.count = shape, seed, sources
        self.total = torch.zeros(shape, dtype=torch.float64)
        self.kept: list[Directions] = []

    def vector(self, source: int) -> Tensor:
        return task_vector(self.shape, 1000 * self.seed + source)

    def add(self, vector: Tensor) -> None:
        self.kept.append(top_directions(vector, TOP_K))
        add_task_vector(self.total, vector)


class Others:
    """One target's view of a domain: everything less its own task vector."""

    def __init__(self, domain: Domain, own: Tensor, target: int) -> None:
        self.domain, self.own, self.target = domain, own, target

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(source) for source in range(self.domain.count) if source != self.target)

    def directions(self, matrix: str, top_k: int) -> list[Directions]:
        return [
            Directions(kept.u[:, :top_k], kept.s[:top_k], kept.v[:, :top_k])
            for source, kept in enumerate(self.domain.kept)
            if source != self.target
        ]

    def mean_task_vector(self, matrix: str) -> Tensor:
        return leave_out_mean(self.domain.total, [self.own], self.domain.count)


def rival_seconds(shape: tuple[int, int], sources: int) -> float:
    """One matrix of one run: full SVDs, polar factors by SVD, and the projection of every source."""
    vectors = [task_vector(shape, 50 + source) for source in range(MEASURED_SOURCES)]
    full: list[tuple[Tensor, Tensor, Tensor]] = []
    svd = timed(lambda: full.extend(torch.linalg.svd(vector, full_matrices=False) for vector in vectors))
    k = directions_per_source(TOP_K, min(shape), sources)
    generator = torch.Generator().manual_seed(0)
    fill = sources - len(full)
    stacks = []
    for side, size in ((0, shape[0]), (2, shape[1])):
        parts = [part[side][:, :k] if side == 0 else part[side][:k].T for part in full]
        parts += [torch.linalg.qr(torch.randn(size, k, generator=generator))[0] for _ in range(fill)]
        stacks.append(torch.cat(parts, dim=1))
    factors: list[Tensor] = []

    def polar() -> None:
        for stack in stacks:
            p, _, qh = torch.linalg.svd(stack, full_matrices=False)
            factors.append(p @ qh)

    orthogonal = timed(polar)
    projection = timed(lambda: [torch.diagonal(factors[0].T @ vector @ factors[1]).clone() for vector in vectors])
    return (svd + projection) * sources / MEASURED_SOURCES + orthogonal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"blocks measured of {BLOCKS}")
    parser.add_argument("--sources", type=int, default=16, help="sources each target has")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: on a machine shared with others")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.linalg.svd(torch.randn(64, 64))  # the first call loads the library
    models = arguments.sources + 1  # the target is one of the domain
    shapes = [*BLOCK_SHAPES * arguments.blocks, PROJECTION_SHAPE]
    scale = (BLOCKS * len(BLOCK_SHAPES) + 1) / len(shapes)
    print(
        f"ViT-B/32 shapes, {len(shapes)} of {BLOCKS * len(BLOCK_SHAPES) + 1} matrices measured, {models} models in the "
        f"domain, {torch.get_num_threads()} threads, {arguments.clock} time"
        + (f"; times scaled by {scale:.2f}" if scale > 1 else "")
    )

    global clock
    if arguments.clock == "cpu":
        clock = time.process_time
    once, domains = 0.0, []
    memory_once = Memory()
    for seed, shape in enumerate(shapes):
        domain = Domain(shape, seed, models)
        for source in range(models):
            vector = domain.vector(source)
            once += timed(lambda domain=domain, vector=vector: domain.add(vector))  # type: ignore[misc]
        domains.append(domain)
    once *= scale
    risen_once = memory_once.risen()

    views = [Others(domain, domain.vector(0), 0) for domain in domains]
    memory_target = Memory()
    starts: list[PooledBasis] = []
    target = timed(lambda: starts.extend(pooled_basis(others, "any", TOP_K) for others in views)) * scale
    risen_target = memory_target.risen()

    worst, check = 0.0, 0.0
    for domain, start in zip(domains, starts, strict=True):
        if domain is domains[0] or domain is domains[-1]:
            basis = orthonormal_basis([top_directions(domain.vector(s), TOP_K) for s in range(1, models)], domain.shape)
            separate = torch.stack([diagonal_coefficients(basis, domain.vector(s)) for s in range(1, models)]).mean(0)
            check = max(check, float((start.pooled - separate).norm() / separate.norm()))
            identity = torch.eye(basis.rank)
            worst = max(worst, float((basis.u.T @ basis.u - identity).abs().max()))

    per_shape = {shape: rival_seconds(shape, arguments.sources) for shape in {*shapes}}
    block = sum(per_shape[shape] for shape in BLOCK_SHAPES)
    run = BLOCKS * block + per_shape[PROJECTION_SHAPE]

    runs = TARGETS * SHOTS
    ours = once + TARGETS * target
    print(f"\n{'':58}{'seconds':>9}")
    print(f"{'once: directions of all sources and the sum':58}{once:9.1f}")
    print(f"{'target: basis and pooled coefficients':58}{target:9.2f}   (goal < 2 on 2 cores)")
    print(f"{'rival: one run (one matrix a shape, scaled by counts)':58}{run:9.1f}")
    print(f"{f'ours, {TARGETS} targets x {SHOTS} shots':58}{ours:9.1f}")
    print(f"{f'rival, {TARGETS} targets x {SHOTS} shots':58}{runs * run:9.1f}")
    print(f"\nratio of work: {runs * run / ours:.0f} x less   (goal >= 50)")
    print(f"memory that a target's basis adds at its peak: {risen_target:.0f} MiB   (goal < 1024)")
    print(f"memory that the once-only part adds: {risen_once:.0f} MiB (the float64 sums and all directions are kept)")
    print(f"pooled coefficients against every source projected: {check:.1e}; orthonormality: {worst:.1e}")


if __name__ == "__main__":
    main()
