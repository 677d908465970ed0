"""The kind of artifact in docs/adding-an-artifact-kind.md is built and read."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.artifacts.spec import ArtifactCache, build, with_inputs
from orchestrator.catalog import backbone_ref, dataset_ref, load_catalog
from orchestrator.core.settings import RunSettings

ROOT = Path(__file__).resolve().parents[2]


def test_the_kind_of_the_page_is_built_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "adding-an-artifact-kind.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mean_feature.py").write_text(code.group(1))
    monkeypatch.syspath_prepend(tmp_path)
    kind = importlib.import_module("mean_feature").MeanFeature
    monkeypatch.delitem(sys.modules, "mean_feature")

    catalog = load_catalog()
    entry = catalog.backbone("tiny-clip")
    where = backbone_ref(entry), dataset_ref(catalog.dataset("glyph-inks"), None), entry.input_size
    spec, settings = kind(*where), RunSettings(str(tmp_path / "store"), device="cpu")
    for each in with_inputs([spec]):
        build(each, settings)

    loaded = ArtifactCache(settings)
    mean_D = loaded.get(spec)
    (features,) = spec.inputs
    assert torch.equal(mean_D, loaded.get(features).mean(0))
    assert mean_D.nbytes == spec.size_bytes(catalog)
    assert loaded.artifact(spec.address).meta["images"] == catalog.dataset("glyph-inks").sizes.test
    assert (spec.gflops(catalog), spec.gpu_share) == (0.0, 0.0)
