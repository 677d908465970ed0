"""Every method runs on a small world, repeats bit for bit, and obeys the protocol's switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bolt.backbone import Backbone, matrix_names
from bolt.finetune import finetune_source
from bolt.methods import METHODS, UnknownSetting
from bolt.methods.base import Method, Registry
from bolt.methods.bolt import BoltSettings, PooledSettings, pooled_start
from bolt.methods.linear_probe import LinearProbeSettings
from bolt.protocol import PUBLISHED, STRICT
from bolt.spectral import Directions, PooledBasis, diagonal_coefficients
from bolt.task import Adapted, Task, cosine_classifier
from bolt.training import Recipe
from tests.bolt.samples import RandomSources, make_task

OURS = ("zero_shot", "linear_probe", "tip_adapter", "bolt", "bolt_pooled")
FEW_SHOT = sorted(name for name, method in METHODS.items() if "fewshot" in method.tracks)
QUICK: dict[str, Any] = {"top_k": 2, "alphas": (1.0, 3.0), "epochs": 2, "batch_size": 8}


def logits_of(task: Task, adapted: Adapted) -> Tensor:
    rows = torch.arange(len(task.support))
    features = task.backbone.encode_images(task.support.pixels(0, rows), adapted.tower)
    return adapted.classify(features).detach()


def run(name: str, task: Task) -> tuple[Adapted, Tensor]:
    method = METHODS[name]
    adapted = method.adapt(task, method.configure(method.tiny))
    return adapted, logits_of(task, adapted)


@pytest.mark.parametrize("name", FEW_SHOT)
@pytest.mark.parametrize("protocol", [STRICT, PUBLISHED], ids=lambda protocol: protocol.name)
def test_every_method_runs_and_repeats_bit_for_bit(name: str, protocol: Any, backbone: Backbone) -> None:
    before = {key: tensor.clone() for key, tensor in backbone.tower.state_dict_open_clip().items()}
    results = [run(name, make_task(backbone, protocol=protocol)) for _ in range(2)]
    (one, logits), (other, again) = results
    assert logits.shape == (12, 3)
    assert torch.isfinite(logits).all()
    assert torch.equal(logits, again)
    assert one.details == other.details
    assert one.coefficients.keys() == other.coefficients.keys()
    assert all(torch.equal(one.coefficients[key], other.coefficients[key]) for key in one.coefficients)
    assert one.trainable_parameters == other.trainable_parameters
    assert (one.tower is not None) == METHODS[name].trains_tower
    after = backbone.tower.state_dict_open_clip()
    assert all(torch.equal(before[key], after[key]) for key in before), "the backbone must not move"


@pytest.mark.parametrize("name", FEW_SHOT)
def test_no_method_touches_the_global_generator(name: str, backbone: Backbone) -> None:
    before = torch.get_rng_state()
    run(name, make_task(backbone))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["linear_probe", "bolt"])
def test_trained_methods_report_their_curve(name: str, backbone: Backbone) -> None:
    seen: list[tuple[int, Mapping[str, float]]] = []
    run(name, make_task(backbone, report=lambda epoch, metrics: seen.append((epoch, metrics))))
    assert [epoch for epoch, _ in seen] == [0, 1]
    assert all(set(metrics) == {"train_loss", "learning_rate"} for _, metrics in seen)


@pytest.mark.parametrize("name", ["linear_probe", "tip_adapter"])
def test_methods_on_frozen_features_read_the_views_they_announce(name: str, backbone: Backbone) -> None:
    read: set[int] = set()
    task = make_task(backbone)
    features = task.support.features

    def watched(view: int) -> Tensor:
        read.add(view)
        return features(view)

    method = METHODS[name]
    settings = method.configure(method.tiny)
    method.adapt(replace(task, support=replace(task.support, features=watched)), settings)
    assert max(read) == method.support_views(settings)


def test_zero_shot_is_the_text_head(backbone: Backbone) -> None:
    task = make_task(backbone)
    _, logits = run("zero_shot", task)
    features = task.support.features(0)
    expected = backbone.logit_scale * torch.nn.functional.cosine_similarity(features[:, None], task.head_CD, dim=-1)
    torch.testing.assert_close(logits, expected)


# ---------------------------------------------------------------------------------------------------- linear probe


def test_the_linear_probe_starts_at_the_text_head_and_moves(backbone: Backbone) -> None:
    task = make_task(backbone)
    _, zero_shot = run("zero_shot", task)
    method = METHODS["linear_probe"]
    still = logits_of(task, method.adapt(task, LinearProbeSettings(epochs=1, learning_rate=1e-12)))
    torch.testing.assert_close(still, zero_shot, rtol=1e-4, atol=1e-4)
    curve: list[float] = []
    watched = replace(task, report=lambda epoch, metrics: curve.append(metrics["train_loss"]))
    adapted = method.adapt(watched, LinearProbeSettings(batch_size=4))
    assert (logits_of(task, adapted) - zero_shot).abs().max() > 0.1
    assert curve[-1] < curve[0]
    assert adapted.trainable_parameters == 3 * 17


# ------------------------------------------------------------------------------------------------------------ BOLT


def test_bolt_trains_its_coefficients_and_nothing_else(backbone: Backbone) -> None:
    task = make_task(backbone)
    adapted, _ = run("bolt", task)
    matrices = matrix_names(backbone.tower.state_dict_open_clip())
    assert set(adapted.coefficients) == {f"{kind}/{name}" for kind in ("pooled", "trained") for name in matrices}
    assert adapted.trainable_parameters == sum(
        value.numel() for key, value in adapted.coefficients.items() if key.startswith("trained/")
    )
    alpha = float(adapted.details["alpha"])
    moved = [
        not torch.equal(alpha * adapted.coefficients[f"pooled/{name}"], adapted.coefficients[f"trained/{name}"])
        for name in matrices
    ]
    assert all(moved)
    assert adapted.tower is not None
    before, after = backbone.tower.state_dict_open_clip(), adapted.tower.state_dict_open_clip()
    assert {name for name in before if not torch.equal(before[name], after[name])} == set(matrices)


def test_bolt_lowers_its_training_loss(backbone: Backbone) -> None:
    curve: list[float] = []
    task = make_task(backbone, report=lambda epoch, metrics: curve.append(metrics["train_loss"]))
    METHODS["bolt"].adapt(task, BoltSettings(top_k=2, learning_rate=3e-2, batch_size=8, epochs=10))
    assert curve[-1] < curve[0]


def test_the_training_free_method_is_bolts_start(backbone: Backbone) -> None:
    task = make_task(backbone)
    pooled, logits = run("bolt_pooled", task)
    still = METHODS["bolt"].configure({**QUICK, "epochs": 1, "learning_rate": 1e-12})
    started = METHODS["bolt"].adapt(task, still)
    assert pooled.trainable_parameters == 0
    assert pooled.details == started.details
    torch.testing.assert_close(logits_of(task, started), logits, rtol=1e-4, atol=1e-4)


def test_the_smallest_of_equally_good_scales_wins(backbone: Backbone) -> None:
    """Sources so weak that no scale changes a prediction: every candidate ties."""
    task = make_task(backbone, sources=RandomSources(backbone, scale=1e-9))
    assert pooled_start(task, PooledSettings(top_k=2, alphas=(10.0, 5.0, 7.0))).alpha == 5.0


def test_a_single_scale_is_used_without_a_look_at_the_support(backbone: Backbone) -> None:
    task = make_task(backbone)

    def unseen(view: int, rows: Tensor) -> Tensor:
        raise AssertionError("the support was looked at")

    blind = replace(task, support=replace(task.support, pixels=unseen))
    assert pooled_start(blind, PooledSettings(top_k=2, alphas=(4.0,))).alpha == 4.0


def test_the_scale_is_the_most_accurate_on_the_support(backbone: Backbone) -> None:
    task = make_task(backbone, sources=RandomSources(backbone, scale=0.1))
    labels = task.support.labels_N
    alphas = (1.0, 3.0, 10.0, 30.0)
    correct = []
    for alpha in alphas:
        adapted = METHODS["bolt_pooled"].adapt(task, PooledSettings(top_k=2, alphas=(alpha,)))
        correct.append(int((logits_of(task, adapted).argmax(dim=-1) == labels).sum()))
    assert len(set(correct)) > 1, "the example must tell the scales apart"
    chosen = pooled_start(task, PooledSettings(top_k=2, alphas=alphas)).alpha
    assert chosen == alphas[correct.index(max(correct))]


def test_bolt_without_sources_is_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="sources"):
        run("bolt", replace(make_task(backbone), sources=None))


def test_bolt_on_empty_task_vectors_is_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="every task vector"):
        run("bolt", make_task(backbone, sources=RandomSources(backbone, scale=0.0)))


def test_sources_that_keep_their_bases_are_asked_once_a_matrix(backbone: Backbone) -> None:
    class Remembering(RandomSources):
        def __init__(self) -> None:
            super().__init__(backbone)
            self.kept: dict[tuple[str, int], PooledBasis] = {}
            self.decompositions = 0

        def directions(self, matrix: str, top_k: int) -> list[Directions]:
            self.decompositions += 1
            return list(super().directions(matrix, top_k))

        def pooled_basis(self, matrix: str, top_k: int) -> PooledBasis:
            if (matrix, top_k) not in self.kept:
                self.kept[matrix, top_k] = super().pooled_basis(matrix, top_k)
            return self.kept[matrix, top_k]

    sources = Remembering()
    logits = [run("bolt", make_task(backbone, sources=sources))[1] for _ in range(2)]
    assert torch.equal(*logits)
    assert sources.decompositions == len(matrix_names(backbone.tower.state_dict_open_clip()))


# -------------------------------------------------------------------------------------------------------- switches


def trained(task: Task) -> dict[str, Tensor]:
    adapted, _ = run("bolt", task)
    return {key: value for key, value in adapted.coefficients.items() if key.startswith("trained/")}


def test_the_schedule_offset_reaches_the_training(backbone: Backbone) -> None:
    before = trained(make_task(backbone))
    after = trained(make_task(backbone, protocol=STRICT.with_switches(schedule_offset=True)))
    assert any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(("alpha_views", "view"), [("plain", 0), ("augmented", 1)])
def test_the_sweep_scores_the_views_the_protocol_names(alpha_views: str, view: int, backbone: Backbone) -> None:
    task = make_task(backbone, protocol=STRICT.with_switches(alpha_views=alpha_views))
    seen: set[int] = set()
    pixels = task.support.pixels

    def watched(view: int, rows: Tensor) -> Tensor:
        seen.add(view)
        return pixels(view, rows)

    pooled_start(replace(task, support=replace(task.support, pixels=watched)), PooledSettings(top_k=2))
    assert seen == {view}


class Signed(RandomSources):
    """Sources every other pooled coefficient of which is negative."""

    def pooled_basis(self, matrix: str, top_k: int) -> PooledBasis:
        start = super().pooled_basis(matrix, top_k)
        sign = 1.0 - 2.0 * (torch.arange(len(start.pooled)) % 2)
        return PooledBasis(start.basis, start.pooled.abs() * sign)


def test_the_published_sign_rule_ignores_and_never_moves_negative_entries(backbone: Backbone) -> None:
    relu = STRICT.with_switches(sigma_sign="relu")
    adapted, _ = run("bolt", make_task(backbone, protocol=relu, sources=Signed(backbone)))
    free, _ = run("bolt", make_task(backbone, sources=Signed(backbone)))
    for key, end in adapted.coefficients.items():
        if key.startswith("trained/"):
            pooled = adapted.coefficients[key.replace("trained/", "pooled/")]
            start = float(adapted.details["alpha"]) * pooled
            assert torch.equal(end[1::2], start[1::2])
            assert not torch.equal(end[0::2], start[0::2])
            assert not torch.equal(free.coefficients[key][1::2], float(free.details["alpha"]) * pooled[1::2])
    name = "transformer.resblocks.0.mlp.c_fc.weight"
    basis = Signed(backbone).pooled_basis(name, 2).basis
    assert adapted.tower is not None
    update = adapted.tower.state_dict_open_clip()[name] - backbone.tower.state_dict_open_clip()[name]
    used = diagonal_coefficients(basis, update)
    torch.testing.assert_close(used, adapted.coefficients[f"trained/{name}"].clamp_min(0), rtol=1e-4, atol=1e-6)


# -------------------------------------------------------------------------------------------------- registry, recipe


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownSetting, match="did you mean 'zero_shot'"):
        METHODS["zeroshot"]
    with pytest.raises(UnknownSetting, match="did you mean 'top_k'"):
        METHODS["bolt"].configure({"topk": 3})


def test_settings_are_checked() -> None:
    bolt = METHODS["bolt"]
    assert bolt.configure({"alphas": [1, 2], "learning_rate": 1, "warmup_steps": 5}) == BoltSettings(
        alphas=(1.0, 2.0), learning_rate=1.0, warmup_steps=5
    )
    for wrong in ({"top_k": 0}, {"epochs": 0}, {"top_k": "12"}, {"alphas": []}, {"warmup_steps": "many"}):
        with pytest.raises(ValueError, match=r"top_k|epochs|alphas|warmup"):
            bolt.configure(wrong)


def test_two_methods_cannot_share_a_name() -> None:
    registry = Registry()
    method = METHODS["zero_shot"]
    registry.register(method)
    with pytest.raises(ValueError, match="two methods"):
        registry.register(method)
    with pytest.raises(ValueError, match="lower-case"):
        registry.register(replace(method, name="Zero-Shot"))


@pytest.mark.parametrize("method", [METHODS[name] for name in OURS], ids=lambda method: method.name)
def test_work_is_what_the_tower_is_asked_for(method: Method, backbone: Backbone) -> None:
    forward: list[int] = []
    task = make_task(backbone)
    pixels = task.support.pixels

    def counted(view: int, rows: Tensor) -> Tensor:
        forward.append(len(rows))
        return pixels(view, rows)

    settings = method.configure(method.tiny)
    method.adapt(replace(task, support=replace(task.support, pixels=counted)), settings)
    work = method.work(len(task.support), settings)
    assert work.forward + work.training == sum(forward)


# ----------------------------------------------------------------------------------------------------- source models


def test_a_source_is_fine_tuned_and_the_backbone_is_not(backbone: Backbone) -> None:
    task = make_task(backbone, shots=8)
    curve: list[float] = []
    before = {key: tensor.clone() for key, tensor in backbone.tower.state_dict_open_clip().items()}
    recipe = Recipe(epochs=8, batch_size=8, learning_rate=1e-3, weight_decay=0.1)
    tensors = finetune_source(
        backbone,
        task.head_CD,
        task.support.labels_N,
        task.support.pixels,
        task.support.order,
        recipe,
        lambda epoch, metrics: curve.append(metrics["train_loss"]),
    )
    assert list(tensors) == list(before)
    assert all(not torch.equal(tensors[key], before[key]) for key in before)
    assert all(torch.equal(backbone.tower.state_dict_open_clip()[key], before[key]) for key in before)
    assert curve[-1] < 0.8 * curve[0]
    tower = backbone.tower.copy(trainable=tensors)
    tower.load_open_clip(tensors)
    features = backbone.encode_images(task.support.pixels(0, torch.arange(4)), tower)
    assert torch.isfinite(cosine_classifier(task.head_CD, backbone.logit_scale)(features)).all()
