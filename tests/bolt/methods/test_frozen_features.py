"""Properties that every method on frozen features must have."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS, base
from bolt.protocol import STRICT, Protocol
from bolt.task.task import Adapted, Task
from bolt.training.loop import Diverged
from tests.helpers.adapting import id_of, protocols_of, with_epochs
from tests.helpers.frozen_tasks import clip_like, frozen_task, with_features
from tests.helpers.quick_settings import quick_settings


def reads_frozen_features_only(name: str) -> bool:
    method = METHODS[name]
    settings = method.configure(quick_settings(method.name))
    reads_more = method.changes_tower or method.trains_text(settings)  # CoOp has tests of its own
    return "fewshot" in method.tracks and method.support_feature_views(settings) is not None and not reads_more


NAMES = [name for name in sorted(METHODS) if reads_frozen_features_only(name)]
QUICK: dict[str, dict[str, Any]] = {
    "linear_probe": {"epochs": 3},
    "tip_adapter": {"passes": 3},
    "tip_adapter_f": {"epochs": 3, "passes": 2},
    "lp_plus_plus": {"steps": 12, "views": 3, "step_counts": [12]},
}
"""Method -> settings of these tests, by default those of ``quick_settings``. No view above 3 may be read."""
every_method = pytest.mark.parametrize("name", NAMES)
each_protocol = pytest.mark.parametrize(
    ("name", "protocol"), [(name, protocol) for name in NAMES for protocol in protocols_of(name)], ids=id_of
)


def run(name: str, task: Task, **changes: Any) -> Adapted:
    method = METHODS[name]
    return method.adapt(task, method.configure({**quick(name), **changes}))


def quick(name: str) -> Mapping[str, Any]:
    return QUICK.get(name, quick_settings(name))


@each_protocol
def test_no_pixel_is_touched_and_no_view_but_those_announced(name: str, protocol: Protocol, backbone: Backbone) -> None:
    """No pixels are read. Methods read all views that they announce; under ``published`` they may read fewer."""
    read: set[int] = set()

    def watched(view: int, features_ND: Tensor) -> Tensor:
        read.add(view)
        return features_ND

    run(name, with_features(clip_like(backbone, shots=2, protocol=protocol).task, watched))
    method = METHODS[name]
    announced = method.support_feature_views(method.configure(quick(name)))
    assert announced is not None
    assert read <= set(range(announced + 1))
    if protocol is STRICT:
        assert max(read) == announced


@each_protocol
def test_the_logits_are_finite_if_only_one_of_four_classes_has_images(
    name: str, protocol: Protocol, backbone: Backbone
) -> None:
    problem = clip_like(backbone, shots=4, classes=4)
    features = [problem.task.support.features(view)[::4] for view in range(4)]
    labels = torch.zeros(4, dtype=torch.int64)
    task = frozen_task(backbone, features.__getitem__, labels, problem.task.head_CD, protocol)
    logits = run(name, task).classify(problem.test_ND)
    assert logits.shape == (len(problem.test_ND), 4)
    assert torch.isfinite(logits).all()


@pytest.mark.slow
@each_protocol
def test_the_same_image_over_and_over(name: str, protocol: Protocol, backbone: Backbone) -> None:
    """All images of a class are the same. Each is classified correctly in all views."""
    problem = clip_like(backbone, shots=4, protocol=protocol)
    task = with_features(problem.task, lambda view, features_ND: problem.task.support.features(0)[:10].repeat(4, 1))
    adapted = run(name, task)
    assert torch.isfinite(adapted.classify(problem.test_ND)).all()
    if protocol is STRICT and name in ("logistic_probe", "lp_plus_plus"):
        support = adapted.classify(task.support.features(0)[:10])
        assert (support.argmax(dim=-1) == torch.arange(10)).all()


@each_protocol
def test_features_with_nan_give_no_accuracy(name: str, protocol: Protocol, backbone: Backbone) -> None:
    def spoiled(view: int, features_ND: Tensor) -> Tensor:
        features_ND = features_ND.clone()
        features_ND[3, 5], features_ND[7, 5] = torch.nan, torch.inf
        return features_ND

    task = with_features(clip_like(backbone, shots=2, protocol=protocol).task, spoiled)
    with pytest.raises((ValueError, Diverged), match=r"features of view \d are NaN or infinite for 2 of .*row 3"):
        run(name, task)


def test_the_method_of_the_docs_gives_no_accuracy_for_nan(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
    (tmp_path / "prototype.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.setattr(base, "METHODS", base.Registry())
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("prototype")
    task = with_features(clip_like(backbone, shots=2).task, lambda view, features_ND: features_ND * torch.nan)
    with pytest.raises(ValueError, match="NaN"):
        base.METHODS["prototype"].run(task, base.METHODS["prototype"].configure({}))
    monkeypatch.delitem(sys.modules, "prototype")


@pytest.mark.slow
@each_protocol
def test_half_precision_features_serve(name: str, protocol: Protocol, backbone: Backbone) -> None:
    """Features in half precision give nearly the same logits as the same features in float32."""
    problem = clip_like(backbone, shots=2, protocol=protocol)
    halves = with_features(problem.task, lambda view, features_ND: features_ND.half())
    rounded = with_features(problem.task, lambda view, features_ND: features_ND.half().float())
    queries = problem.test_ND.half()
    logits = run(name, halves).classify(queries)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, run(name, rounded).classify(queries.float()))


GAINS: list[tuple[str, dict[str, Any], dict[int, int], int]] = [
    ("ape", {}, {1: -1, 8: 1}, 0),
    ("ape_t", {}, {1: -1, 8: 1}, 750),
    ("clap", {}, {1: 5, 4: 5, 16: 5}, 960),
    ("clap", {"constraint": "none"}, {1: 5, 4: 5, 16: 5}, 960),
    ("clip_adapter", {}, {4: 1, 16: 1}, 96**2 // 2),
    ("cross_modal", {"iterations": 3200}, {1: 2, 4: 2, 16: 2}, 960),
    ("dmn", {}, {16: 2}, 0),
    ("dmn_trained", {}, {8: 2}, 4800),
    ("gda", {}, {4: 5, 16: 5}, 0),
    ("linear_probe", {}, {16: 20}, 970),
    ("proker", {}, {8: 2}, 0),
    ("task_res", {}, {4: 5, 16: 5}, 960),
]
"""(method, settings, shots) -> the least gain over the text head in points, and the number of trained parameters."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings", "gains", "trained"), GAINS)
def test_it_beats_the_text_head(
    name: str, settings: dict[str, Any], gains: dict[int, int], trained: int, backbone: Backbone
) -> None:
    for shots, points in gains.items():
        problem = clip_like(backbone, shots=shots)
        adapted = METHODS[name].adapt(problem.task, METHODS[name].configure(settings))
        assert problem.accuracy(adapted) > problem.zero_shot() + points
    assert adapted.trainable_parameters == trained


@every_method
def test_after_each_epoch_a_trained_method_shows_its_classifier(name: str, backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=2)
    task, shown = with_epochs(problem.task, lambda adapted: _shown(adapted, problem.test_ND))
    last = _shown(run(name, task), problem.test_ND)
    trains = {"linear_probe": 3, "tip_adapter_f": 3, "lp_plus_plus": 12, "cross_modal": 1}
    assert len(shown) == trains.get(name, quick(name).get("epochs", 0))
    assert not shown or shown[-1] == last


def _shown(adapted: Adapted, test_ND: Tensor) -> tuple[Any, ...]:
    return adapted.classify(test_ND).tolist(), adapted.trainable_parameters


@pytest.mark.parametrize(
    ("name", "settings", "used"),
    [
        ("gda", {}, {}),
        ("logistic_probe", {}, {"c": 10.0}),
        ("lp_plus_plus", {"one_shot_steps": 7}, {"steps": 7}),
        ("tip_adapter", {"passes": 2}, {"alpha": 3.0, "beta": 5.5}),
    ],
)
def test_with_one_image_a_class_numbers_are_fixed_and_it_is_said(
    name: str, settings: dict[str, Any], used: dict[str, float], backbone: Backbone
) -> None:
    details = METHODS[name].adapt(clip_like(backbone, shots=1).task, METHODS[name].configure(settings)).details
    assert "one image" in str(details["search"])
    assert used.items() <= details.items()
