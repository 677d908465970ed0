"""Support images are stored near their own size, and photographs no larger than their views need."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bolt.clip.input_size import InputSize
from bolt.task.support import draw_support
from orchestrator.artifacts.features import SupportFeatures
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.required import cell_artifacts, support_images
from orchestrator.artifacts.spec import ArtifactCache, build, with_inputs
from orchestrator.artifacts.support_images import SupportImages
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import DatasetOptions, add_dataset
from orchestrator.grid import load_grid
from orchestrator.store.building import BuildProgress
from tests.helpers.photographs import CLASSES, photograph

GRID = """
title: Photographs
blocks:
  - {track: fewshot, backbones: [BACKBONE], datasets: [ware], shots: [2], seeds: [1], methods: [bitfit, tip_adapter]}
"""
PHOTOGRAPH = (160, 120)
CAP = 64
"""Twice the image size of the tiny CLIP."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with photographs that are larger than the tiny CLIP needs, and smaller than ViT-B/32 needs."""
    folder = tmp_path_factory.mktemp("photographs")
    for split, numbers in (("train", range(4)), ("test", range(4, 6))):
        for name in CLASSES:
            (folder / "ware" / split / name).mkdir(parents=True)
            for number in numbers:
                photograph(name, number, PHOTOGRAPH).save(folder / "ware" / split / name / f"{number}.png")
    add_dataset(folder / "ware", [folder / "mine.yaml"], DatasetOptions())
    return folder


@pytest.fixture(scope="module")
def catalog(folder: Path) -> Catalog:
    return load_catalog([folder / "mine.yaml"])


def cells(catalog: Catalog, folder: Path, tmp_path: Path, backbone: str = "tiny-clip") -> dict[str, Cell]:
    """Return the cell of each method."""
    (tmp_path / "grid.yaml").write_text(GRID.replace("BACKBONE", backbone))
    grid = load_grid(tmp_path / "grid.yaml", catalog, data_root=folder)
    return {cell.method.name: cell for cell in grid.cells}


def settings_of(folder: Path, tmp_path: Path) -> RunSettings:
    mine = (str(folder / "mine.yaml"),)
    return RunSettings(str(tmp_path / "store"), device="cpu", data_root=str(folder), catalog_files=mine)


def test_photographs_are_capped_and_say_so_in_their_identity(catalog: Catalog, folder: Path, tmp_path: Path) -> None:
    small, large = (
        support_images(cells(catalog, folder, tmp_path, name)["bitfit"], catalog) for name in ("tiny-clip", "vit-b-32")
    )
    assert (small.short_side, large.short_side) == (CAP, None)
    assert small.identity["short_side"] == CAP
    assert "short_side" not in large.identity  # images that are not capped keep the name they had
    assert small.address != large.address
    drawn = load_grid("smoke", catalog).cells[-1]  # small already
    assert support_images(drawn, catalog).short_side is None


def test_capped_images_take_the_planned_bytes_and_give_similar_views(
    folder: Path, catalog: Catalog, tmp_path: Path
) -> None:
    cell = cells(catalog, folder, tmp_path)["bitfit"]
    capped = support_images(cell, catalog)
    whole = SupportImages(capped.dataset, capped.seed, capped.shots, capped.draw, capped.pool, capped.split)
    settings = settings_of(folder, tmp_path)
    loaded = ArtifactCache(settings)
    taken, views = [], []
    for spec in (capped, whole):
        build(spec, settings)
        taken.append(loaded.artifact(spec.address).path("pixels.bin").stat().st_size)
        pool = loaded.get(spec)
        views.append(pool.pixels(1, pool.indices, InputSize(32), cell_artifacts(cell, catalog).views).float())
        # 4 images of each of 3 classes, though the largest support would take 16
        assert taken[-1] == pytest.approx(spec.size_bytes(catalog), rel=0.35)
    assert taken[0] == 12 * 3 * CAP * round(CAP * PHOTOGRAPH[0] / PHOTOGRAPH[1])
    assert taken[1] == 12 * 3 * PHOTOGRAPH[0] * PHOTOGRAPH[1]
    assert 0 < float((views[0] - views[1]).abs().mean()) < 8  # of 255


def test_whatever_goes_through_images_reports_its_progress(
    folder: Path, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Support images and features of a large dataset took minutes without a word."""
    told: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(BuildProgress, "write", lambda self, done, of: told.update({self._name: (done, of)}))
    specs = with_inputs(cell_artifacts(cells(catalog, folder, tmp_path)["tip_adapter"], catalog).specs)
    for spec in specs:
        build(spec, settings_of(folder, tmp_path))
    many = [spec for spec in specs if spec.kind in ("images", "features") and not isinstance(spec, Head)]
    assert {f"status/building/{spec.address.replace('/', '.')}" for spec in many} == told.keys()
    assert all(done == of > 1 for done, of in told.values())


def test_features_of_small_classes_are_estimated_from_these(catalog: Catalog, folder: Path, tmp_path: Path) -> None:
    cell = cells(catalog, folder, tmp_path)["tip_adapter"]
    (spec,) = (each for each in cell_artifacts(cell, catalog).specs if isinstance(each, SupportFeatures))
    encoded = 4 * len(CLASSES) * (spec.views + 1)
    assert spec.gflops(catalog) == pytest.approx(encoded * catalog.backbone("tiny-clip").gflops_per_image)


def test_a_cell_of_one_shot_reads_one_image_of_each_class(folder: Path, catalog: Catalog, tmp_path: Path) -> None:
    two_shots = cells(catalog, folder, tmp_path)["tip_adapter"]
    read = {k: cell_artifacts(replace(two_shots, shots=k), catalog).support_features for k in (1, 2, 4, 5, 16)}
    assert {k: spec.shots for k, spec in read.items() if spec} == {1: 1, 2: 4, 4: 4, 5: None, 16: None}
    one, whole = read[1], read[16]
    assert one is not None
    assert whole is not None
    assert "shots" not in whole.identity  # features of all images keep the name they had
    assert one.size_bytes(catalog) * 4 == whole.size_bytes(catalog)  # there are 4 images of each class
    settings = settings_of(folder, tmp_path)
    loaded = ArtifactCache(settings)
    for spec in (one.support, one, whole):
        build(spec, settings)
    pool, few, many = loaded.get(one.support), loaded.get(one), loaded.get(whole)
    drawn = draw_support(pool.labels_of_split, 1, dataset="ware", seed=1)
    assert few["indices_N"].tolist() == sorted(drawn)
    rows = torch.searchsorted(many["indices_N"], few["indices_N"])
    torch.testing.assert_close(few["features_VND"], many["features_VND"][:, rows], rtol=1e-5, atol=1e-5)
