"""How fast a GPU is supplied with images: views made one by one on the host, or as matrix products on the device.

    python benchmarks/supply.py                # under a minute on one core
    python benchmarks/supply.py --grid full    # the counts of another grid

No GPU is needed. It prints five parts:

    views     views a second and core. The old path makes each with torchvision on the host. On the new path the host
              draws the boxes and launches the operators of a batch; that is measured with the same operators on
              images of 16 x 12 pixels, which leave next to nothing to compute
    copies    bytes that a training step copies to the device on both paths, counted
    counts    how many views the cells of a grid ask for, how many of these are distinct, and how many the host makes
    reading   decoded training images read from a memory map, against JPEG files that are decoded for every epoch
    equality  views of both paths compared bit by bit: 24 crops of both families, and every drawn dataset
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bolt.clip.augment import SOURCE_CROP, SUPPORT_CROP, Crop, augmented_view, view_box
from bolt.clip.batched_resize import resize_crops
from bolt.clip.preprocess import rgb_pixels
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.meta_start import MetaStart
from orchestrator.artifacts.required import cell_artifacts, configured_method
from orchestrator.artifacts.source_model import SourceModel
from orchestrator.artifacts.spec import ArtifactSpec
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.catalog.routes import ToyRoute
from orchestrator.core.cell import Cell
from orchestrator.datasets.opening import open_dataset
from orchestrator.grid import load_grid
from orchestrator.planning.gpu_estimate import PAPER_METHODS
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.store import Store
from orchestrator.tracks import TRACKS
from orchestrator.util.units import human_bytes

PHOTOGRAPH, STAMP = (375, 500), (12, 16)
SIZE, BATCH = 224, 32
SIDES = (
    (28, 28), (32, 32), (40, 31), (96, 96), (96, 640), (224, 224), (256, 256), (333, 500), (375, 500), (448, 598),
    (500, 333), (600, 600),
)  # fmt: skip
"""Height and width of the images of the 24 crops, one of each family."""
GOALS = {"bytes": 10_000, "views made on the host": 1.0}


def random_image(height: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def old_path(images: Sequence[Tensor], view: int, crop: Crop = SUPPORT_CROP, size: int = SIZE) -> Tensor:
    """Each view by itself on the host: uint8 (B, 3, S, S)."""
    return torch.stack(
        [augmented_view(image, size, "benchmark", 0, view, row, crop) for row, image in enumerate(images)]
    )


def new_path(images: Sequence[Tensor], view: int, crop: Crop = SUPPORT_CROP, size: int = SIZE) -> Tensor:
    """The same views as two batched products, where the images are."""
    boxes = [view_box(*image.shape[1:], "benchmark", 0, view, row, crop) for row, image in enumerate(images)]
    return resize_crops(images, boxes, size)


def views_a_second(path: Callable[[Sequence[Tensor], int], Tensor], images: Sequence[Tensor], rounds: int) -> float:
    """Views a second of processor time, from the fastest round."""
    path(images, 1)
    best = float("inf")
    for number in range(rounds):
        started = time.process_time()
        path(images, number + 2)
        best = min(best, time.process_time() - started)
    return len(images) / best


class CopiedBytes(TorchDispatchMode):
    """Counts the bytes that are copied from the host to the meta device, which stands for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [value for value in args if isinstance(value, Tensor)]
        if isinstance(result, Tensor) and result.is_meta and tensors:
            on_host = (tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.ndim)
            self.count += sum(tensor.numel() * tensor.element_size() for tensor in on_host)
        return result


def copied_bytes(step: Callable[[], object]) -> int:
    with CopiedBytes() as counted:
        step()
    return counted.count


def measure_views(rounds: int) -> bool:
    images = [random_image(*PHOTOGRAPH, seed=row) for row in range(BATCH)]
    on_device = [image.to("meta") for image in images]
    stamps = [random_image(*STAMP, seed=row) for row in range(BATCH)]
    old = views_a_second(old_path, images, rounds)
    new = views_a_second(partial(new_path, size=4), stamps, rounds)
    print(f"views of photographs of {PHOTOGRAPH[1]} x {PHOTOGRAPH[0]} pixels, in batches of {BATCH}, a second and core")
    print(f"  old path, torchvision on the host          {old:8,.0f}   ({1e3 * BATCH / old:.1f} ms a batch)")
    print(f"  new path, the host's part                  {new:8,.0f}   ({1e3 * BATCH / new:.1f} ms a batch)")
    before = copied_bytes(lambda: old_path(images, 1).to("meta"))
    after = copied_bytes(lambda: new_path(on_device, 1))
    print("bytes that a step copies to the device")
    print(f"  old path {before:,}, new path {after:,}  (goal: under {GOALS['bytes']:,})")
    return after < GOALS["bytes"]


def training_views(cells: Iterable[Cell], catalog: Catalog) -> tuple[int, int]:
    """How many augmented views the cells train on, and how many of them are distinct.

    A smaller support is a part of a larger one, so view v is needed of the largest support that is seen in view v.
    """
    computed = 0
    views_of: dict[object, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for cell in cells:
        images = _support_size(cell, catalog)
        trained = _passes(cell, catalog)[0]
        if not (images and trained):
            continue
        computed += trained
        of_support = views_of[cell.dataset.name, cell.seed, cell_artifacts(cell, catalog).views]
        of_support[images] = max(of_support[images], -(-trained // images))
    distinct = 0
    for of_support in views_of.values():
        covered = 0
        for images in sorted(of_support, reverse=True):
            distinct += images * max(0, of_support[images] - covered)
            covered = max(covered, of_support[images])
    return computed, distinct


def evaluation_views(cells: Iterable[Cell], catalog: Catalog) -> tuple[int, int, int]:
    """Views without augmentation, for the choice of alpha: asked for, distinct, and made by one process on a GPU.

    Such a process keeps the views of the last support, so it makes them again when it comes back to a support.
    """
    asked = made = 0
    largest: dict[object, int] = defaultdict(int)
    with_support = (cell for cell in cells if cell.shots)
    for support, of_support in groupby(with_support, key=lambda cell: (cell.dataset.name, cell.seed)):
        sizes = [0]
        for cell in of_support:
            if scored := _passes(cell, catalog)[1]:
                asked += scored
                sizes.append(_support_size(cell, catalog))
        made += max(sizes)
        largest[support] = max(largest[support], *sizes)
    return asked, sum(largest.values()), made


def _support_size(cell: Cell, catalog: Catalog) -> int:
    return cell.shots * catalog.dataset(cell.dataset.name).classes


def _passes(cell: Cell, catalog: Catalog) -> tuple[int, int]:
    """Augmented views and evaluation views that a cell takes through the tower."""
    method, settings = configured_method(cell)
    entry = catalog.dataset(cell.dataset.name)
    found = TRACKS[cell.track].tower_passes(method, settings, cell.shots * entry.classes, entry.sizes.test)
    chooses_alpha = hasattr(settings, "alphas")
    return found.training + (0 if chooses_alpha else found.forward), found.forward if chooses_alpha else 0


def plan_grid(name: str) -> Plan:
    """The grid's plan in an empty store."""
    catalog = load_catalog()
    return make_plan(load_grid(name, catalog), catalog, Store("memory://supply"))


def count_views(plan: Plan) -> bool:
    catalog, grid_name = plan.catalog, plan.grid.name
    cells = [cell for cell in plan.cells if TRACKS[cell.track].gives_support]
    passed = True
    for title, part in (("all methods", cells), ("the paper's", [c for c in cells if c.method.name in PAPER_METHODS])):
        asked, distinct = training_views(part, catalog)
        asked_plain, distinct_plain, made = evaluation_views(part, catalog)
        share = made / (distinct + distinct_plain) if distinct + distinct_plain else 0.0
        print(f"views of the grid {grid_name}, {title}: {len(part):,} cells")
        print(
            f"  augmented: {_millions(asked)} asked for, {_millions(distinct)} distinct; on a GPU the host makes none"
        )
        plain = [_millions(count) for count in (asked_plain, distinct_plain, made)]
        print(f"  for alpha: {plain[0]} asked for, {plain[1]} distinct; on a GPU the host makes {plain[2]}")
        print(f"  the host makes {share:.2f} views for each distinct one  (goal: {GOALS['views made on the host']:g});")
        print(f"  a run on CPUs makes {(asked + asked_plain) / max(1, distinct + distinct_plain):.1f}")
        passed &= share <= GOALS["views made on the host"]
    return passed


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count > 99_999 else f"{count:,}"


def compare_reading(plan: Plan, rounds: int) -> None:
    """What it costs to keep a split as JPEG files, decoded for every epoch, instead of decoded."""
    height, width = PHOTOGRAPH
    coarse = random_image(height // 8, width // 8, seed=0).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=95)
    size, packed = 3 * height * width, buffer.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        np.zeros(BATCH * size, dtype=np.uint8).tofile(f"{folder}/pixels.bin")
        stored = np.memmap(f"{folder}/pixels.bin", dtype=np.uint8, mode="r")

        def read(images: Sequence[Tensor], view: int) -> Tensor:
            return torch.from_numpy(np.array(stored[view % BATCH * size :][:size]))

        def decode(images: Sequence[Tensor], view: int) -> Tensor:
            return torch.from_numpy(rgb_pixels(Image.open(io.BytesIO(packed))))

        seconds = [1 / views_a_second(path, [torch.empty(0)], 8 * rounds) for path in (read, decode)]
    reads = sum(_training_reads(spec, plan.catalog) for spec in plan.missing)
    splits = [spec for spec in plan.missing if isinstance(spec, Images) and spec.split == "train"]
    taken = sum(spec.size_bytes(plan.catalog) for spec in splits)
    print(f"training images of {plan.grid.name}, seen {reads / 1e6:.1f} M times, if all were such photographs")
    for title, each in zip(("decoded", "as JPEG files"), seconds, strict=True):
        print(f"  {title:14}{1e3 * each:5.2f} ms an image, {reads * each / 3600:5.1f} core-hours")
    print(
        f"  decoded they take {human_bytes(taken)}; one of these photographs is {size / len(packed):.0f} times its file"
    )


def _training_reads(spec: ArtifactSpec, catalog: Catalog) -> int:
    """How many training images a fine-tuning or a meta-learning sees, each as often as it is seen."""
    if isinstance(spec, SourceModel):
        return catalog.dataset(spec.dataset.name).sizes.train * (spec.recipe.epochs or 1)
    if isinstance(spec, MetaStart):
        return spec.recipe.steps * spec.recipe.tasks_per_step * (spec.recipe.support + spec.recipe.query)
    return 0


def compare_bits(images_of_each: int) -> bool:
    images = [random_image(*sides, seed=number) for number, sides in enumerate(SIDES)]
    equal = {
        f"{len(images)} crops, {name}": torch.equal(new_path(images, 1, crop), old_path(images, 1, crop))
        for name, crop in (("50 to 100 % of the area, mirrored", SUPPORT_CROP), ("90 to 100 %", SOURCE_CROP))
    }
    catalog = load_catalog()
    for name, entry in catalog.datasets.items():
        if not isinstance(entry.route, ToyRoute):
            continue
        part = open_dataset(entry, None).parts["test"]
        rows = np.linspace(0, len(part) - 1, images_of_each).astype(np.int64)
        drawn = [torch.from_numpy(rgb_pixels(part.read(int(row)))) for row in rows]
        equal[name] = torch.equal(new_path(drawn, 1, size=32), old_path(drawn, 1, size=32))
    different = [name for name, same in equal.items() if not same]
    print(
        f"equal bits on both paths: {len(equal) - len(different)} of {len(equal)} families of crops and drawn datasets"
    )
    if different:
        print(f"  different: {', '.join(different)}")
    return not different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", default="fewshot", help="whose views are counted")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=64, help="of each drawn dataset")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan = plan_grid(arguments.grid)
    passed = [measure_views(arguments.rounds), count_views(plan), compare_bits(arguments.images)]
    compare_reading(plan, arguments.rounds)
    if not all(passed):
        raise SystemExit("a goal is missed")


if __name__ == "__main__":
    main()
