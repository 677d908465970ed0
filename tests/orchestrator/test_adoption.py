"""Checkpoints of others as sources: the same cells from every layout, and everything that must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from bolt.huggingface import config_from_shape, to_huggingface
from orchestrator.backbones import load_backbone
from orchestrator.catalog import Catalog, checkpoint_digest, grids_folder, load_catalog
from orchestrator.grid import Grid, load_grid
from orchestrator.plan import make_plan
from orchestrator.settings import RunSettings
from orchestrator.stages.artifacts import AdoptedSource, Images, SourceModel
from orchestrator.stages.build import build
from orchestrator.store import Store
from orchestrator.trial import run_cell
from orchestrator.workbench import Workbench

TARGET = "glyph-digits"
SOURCES = ("glyph-inks", "glyph-capitals", "aerial-roofs", "glyph-kinds")
GRID = f"""
title: Adoption
fine_tuning: {{epochs: 1, batch_size: 64, learning_rate: 5.0e-4, warmup_steps: 2}}
blocks:
  - track: fewshot
    backbones: tiny-clip
    datasets: {TARGET}
    sources: {{datasets: [{", ".join(SOURCES)}]}}
    shots: 1
    seeds: 1
    methods: bolt_pooled
"""


@pytest.fixture(scope="module")
def grid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grid") / "adoption.yaml"
    path.write_text(GRID)
    return path


@dataclass(frozen=True)
class Built:
    """A grid with everything its cells need in a store."""

    grid: Grid
    catalog: Catalog
    settings: RunSettings

    @property
    def bench(self) -> Workbench:
        return Workbench(self.settings)


def build_all(grid_file: Path, folder: Path, *catalogs: Path, set_: tuple[str, ...] = ()) -> Built:
    catalog = load_catalog(catalogs)
    grid = load_grid(grid_file, catalog, set_=set_)
    settings = RunSettings(str(folder), device="cpu", catalog_files=tuple(str(path) for path in catalogs))
    for need in make_plan(grid, catalog, Store(folder)).missing:
        build(need, settings)
    return Built(grid, catalog, settings)


@pytest.fixture(scope="module")
def tuned(grid_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The grid with sources fine-tuned here."""
    return build_all(grid_file, tmp_path_factory.mktemp("tuned"))


@pytest.fixture(scope="module")
def towers(tuned: Built) -> dict[str, dict[str, Tensor]]:
    """Every fine-tuned source's tensors, by dataset."""
    store = Store(tuned.settings.store_url)
    plan = make_plan(tuned.grid, tuned.catalog, store)
    models = [planned.need for planned in plan.artifacts if isinstance(planned.need, SourceModel)]
    return {
        model.dataset.name: load_file(found.path("tower.safetensors"))
        for model in models
        if (found := store.artifact(model.address)) is not None
    }


def as_tower(tower: dict[str, Tensor], path: Path) -> Path:
    save_file(tower, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def as_clip(tower: dict[str, Tensor], path: Path) -> Path:
    whole = load_file(grids_folder() / "backbones/tiny-clip.safetensors")
    whole |= {f"visual.{name}": tensor for name, tensor in tower.items()}
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in whole.items()}}, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


def as_task_vector_repository(tower: dict[str, Tensor], path: Path) -> Path:
    state = {f"model.visual.{name}": tensor for name, tensor in tower.items()}
    torch.save(state | {"model.logit_scale": torch.tensor(4.6)}, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


def as_huggingface(tower: dict[str, Tensor], path: Path) -> Path:
    path.mkdir()
    save_file(to_huggingface(tower), path / "model.safetensors")
    shape = load_backbone(load_catalog().backbone("tiny-clip"), "cpu").tower.shape
    (path / "config.json").write_text(json.dumps(config_from_shape(shape)))
    return path


LAYOUTS: tuple[Callable[[dict[str, Tensor], Path], Path], ...] = (
    as_tower,
    as_clip,
    as_task_vector_repository,
    as_huggingface,
)


def write_catalog(path: Path, files: dict[str, Path]) -> Path:
    """A catalog file that adopts one checkpoint per dataset."""
    entries = {
        name: {"file": str(file.relative_to(path.parent)), "sha256": checkpoint_digest(file)}
        for name, file in files.items()
    }
    path.write_text(yaml.safe_dump({"checkpoints": {"tiny-clip": entries}}))
    return path


@pytest.fixture(scope="module")
def adopted_files(towers: dict[str, dict[str, Tensor]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog in which each source has another layout."""
    folder = tmp_path_factory.mktemp("adopted")
    files = {name: write(towers[name], folder / name) for name, write in zip(SOURCES, LAYOUTS, strict=True)}
    return write_catalog(folder / "mine.yaml", files)


def test_adopted_sources_give_the_cell_of_fine_tuned_ones(
    grid_file: Path, tuned: Built, adopted_files: Path, tmp_path: Path
) -> None:
    """Four layouts, bit for bit, without one image of the sources' datasets."""
    adopted = build_all(grid_file, tmp_path, adopted_files)
    plan = make_plan(adopted.grid, adopted.catalog, Store(tmp_path))
    assert not plan.missing
    kinds = [type(planned.need) for planned in plan.artifacts]
    assert kinds.count(AdoptedSource) == len(SOURCES)
    assert SourceModel not in kinds
    read = {planned.need.dataset.name for planned in plan.artifacts if isinstance(planned.need, Images)}
    assert read == {TARGET}

    (theirs,), (ours,) = tuned.grid.cells, adopted.grid.cells
    assert theirs.id != ours.id
    assert run_cell(theirs, tuned.bench).evaluations == run_cell(ours, adopted.bench).evaluations
    for source in ours.sources:
        twin = next(ref for ref in theirs.sources if ref.dataset == source.dataset)
        mine, other = adopted.bench.sources(ours), tuned.bench.sources(theirs)
        pair = mine.task_vector(source.dataset), other.task_vector(twin.dataset)
        assert all(torch.equal(pair[0][name], pair[1][name]) for name in pair[1])
