"""What bfloat16 changes: accuracy in bfloat16 less accuracy in float32, paired over drawn targets, seeds and methods.

    python benchmarks/precision.py --store STORE                        # 16 targets x 3 seeds x 4 methods, k = 1
    python benchmarks/precision.py --store STORE --targets 2 --seeds 1 --methods bolt

STORE holds the grid ``demo``: the source models are read from it. Missing features and support images are added to it.
Every pair is written to ``--out`` once it is measured; the same command continues with those that are missing there.

Everything that runs a tower computes in the cell's format: features, training, the choice of alpha, scoring. The source
models are the same in both. On a CPU, a product of bfloat16 matrices is computed as tensor cores compute it: exact
products, float32 sums, the result rounded to bfloat16. PyTorch's own kernels are 10 to 30 times slower on processors
without bfloat16 instructions (``--native`` uses them).

Equivalence holds if the mean difference of every method is below 0.2 points in size. The interval is of the mean over
targets, each the mean of its seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from bolt.protocol import Precision
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.required import cell_artifacts
from orchestrator.artifacts.spec import build, with_inputs
from orchestrator.catalog import load_catalog
from orchestrator.cells.measure import measure
from orchestrator.core.cell import Cell
from orchestrator.core.settings import RunSettings
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.store import Store

LIMIT = 0.2
"""Points that a mean difference stays below."""
METHODS: dict[str, dict[str, Any]] = {
    "bolt": {"learning_rate": 0.01},
    "lora": {"learning_rate": 1e-3},
    "atlas": {"epochs": 3},
    "full_finetune": {"learning_rate": 5e-4},
}
"""The rates are the demo's; aTLAS trains for three of its ten epochs."""
FINE_TUNING = {"epochs": 8, "batch_size": 32, "learning_rate": 5e-4, "warmup_steps": 50}
"""The demo's recipe, so that its source models are read."""

_ATEN = torch.ops.aten
_PRODUCTS = {
    _ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm, _ATEN.linear, _ATEN.matmul, _ATEN.convolution, _ATEN.conv2d,
    _ATEN.convolution_backward,
}  # fmt: skip


class Float32Sums(TorchDispatchMode):
    """Computes products of bfloat16 tensors with float32 sums, and rounds the result to bfloat16."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket not in _PRODUCTS or not any(_is_half(one) for one in args):
            return func(*args, **(kwargs or {}))
        wide = tree_map(lambda one: one.float() if _is_half(one) else one, args)
        result = func(*wide, **(kwargs or {}))
        return tree_map(lambda one: one.bfloat16() if isinstance(one, Tensor) else one, result)


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


def cells_of(options: argparse.Namespace) -> tuple[list[Cell], Any]:
    """The cells to measure in their default format, sorted by target, and the grid."""
    block = {
        "track": "fewshot",
        "backbones": ["tiny-clip"],
        "domains": ["glyphs", "aerial"],
        "sources": "leave_one_out",
        "shots": [options.shots],
        "seeds": list(range(1, options.seeds + 1)),
        "methods": [{name: METHODS[name]} for name in options.methods],
    }
    with TemporaryDirectory() as folder:
        path = Path(folder, "precision.yaml")
        path.write_text(yaml.safe_dump({"title": "Precision", "fine_tuning": FINE_TUNING, "blocks": [block]}))
        grid = load_grid(path, load_catalog())
    targets = list(dict.fromkeys(cell.dataset.name for cell in grid.cells))
    if options.targets < len(targets):  # of both domains alike
        targets = targets[:: len(targets) // options.targets][: options.targets]
    return [cell for cell in grid.cells if cell.dataset.name in targets], grid


def in_format(cell: Cell, precision: Precision) -> Cell:
    """The cell in another number format, with the same source models."""
    return replace(cell, backbone=replace(cell.backbone, precision=precision))


def accuracy(cell: Cell, loaded: LoadedArtifacts) -> float:
    """The accuracy of a cell in per cent. Builds what it reads, but no source model."""
    for spec in with_inputs(cell_artifacts(cell, loaded.catalog).specs):
        build(spec, loaded.settings)
    return measure(cell, loaded).result.evaluations[0].accuracy


def summary(pairs: Mapping[str, Mapping[str, float]], methods: list[str]) -> list[str]:
    """One line for each method: mean difference, its 95 % interval over targets, the largest, and the verdict."""
    lines = [f"{'method':15} {'pairs':>5} {'float32':>8} {'bfloat16':>8} {'mean':>7}  95 % interval     largest"]
    held = True
    for method in methods:
        found: dict[str, list[float]] = {key.split()[0]: [] for key in pairs if key.split()[2] == method}
        for key, pair in pairs.items():
            if key.split()[2] == method:
                found[key.split()[0]].append(pair["bfloat16"] - pair["float32"])
        if not found:
            continue
        means = [statistics.fmean(values) for values in found.values()]
        mean, every = statistics.fmean(means), [value for values in found.values() for value in values]
        half = math.nan
        if len(means) > 1:
            half = float(stats.t.ppf(0.975, len(means) - 1)) * statistics.stdev(means) / math.sqrt(len(means))
        level = {
            name: statistics.fmean(pair[name] for key, pair in pairs.items() if key.split()[2] == method)
            for name in ("float32", "bfloat16")
        }
        held = held and abs(mean) < LIMIT
        lines.append(
            f"{method:15} {len(every):5} {level['float32']:8.2f} {level['bfloat16']:8.2f} {mean:+7.3f}  "
            f"{mean - half:+.3f} to {mean + half:+.3f}  {max(every, key=abs):+.2f}"
        )
    return [*lines, f"every mean difference is below {LIMIT} points in size: {'yes' if held else 'NO'}"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="a store with the grid demo")
    parser.add_argument("--targets", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shots", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--native", action="store_true", help="PyTorch's own kernels for bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("precision.json"))
    options = parser.parse_args(arguments)
    cells, grid = cells_of(options)
    loaded = LoadedArtifacts(RunSettings(options.store, device=options.device))
    artifacts = make_plan(grid, loaded.catalog, Store(options.store)).missing
    if missing := [spec for spec in artifacts if spec.kind in ("sources", "spectra")]:
        parser.error(
            f"{options.store} misses {len(missing)} artifacts of source models: run the grid demo into it first"
        )
    fast = options.device == "cpu" and not options.native
    pairs: dict[str, dict[str, float]] = json.loads(options.out.read_text()) if options.out.is_file() else {}
    for cell in sorted(cells, key=lambda cell: (cell.seed, cell.dataset.name, cell.method.name)):
        key = f"{cell.dataset.name} {cell.seed} {cell.method.name} k{cell.shots}"
        if key in pairs:
            continue
        exact = accuracy(cell if options.device == "cpu" else in_format(cell, "float32"), loaded)
        with Float32Sums() if fast else nullcontext():
            pairs[key] = {"float32": exact, "bfloat16": accuracy(in_format(cell, "bfloat16"), loaded)}
        print(f"{key}: {exact:.2f} {pairs[key]['bfloat16'] - exact:+.2f}", flush=True)
        options.out.write_text(json.dumps(pairs, indent=1))
    lines = summary(pairs, options.methods)
    print("\n".join(lines))
    return 0 if lines[-1].endswith("yes") else 1


if __name__ == "__main__":
    raise SystemExit(main())
