"""What methods train: which tensors move, how many numbers that is on the papers' towers, and that the loss falls."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import layer_norm_names
from bolt.clip.tower import ImageTower
from bolt.methods.bitfit import bias_names
from bolt.methods.common.reparametrised import weight_matrices
from bolt.methods.vera import scaled_projection
from bolt.task.classifiers import CosineClassifier
from tests.helpers.adapting import adapt, classifier, logits_of, run, with_curve, with_epochs
from tests.helpers.towers import VIT_B32, VIT_L14, make_task, moved_tensors

State = Mapping[str, Tensor]
STILL: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-30, "warmup_steps": 0}


def named(*endings: str) -> Callable[[State], set[str]]:
    return lambda state: {name for name in state if name.endswith(endings)}


def biases(state: State) -> set[str]:
    return {name for name in state if "bias" in name}


def norms_in_blocks(state: State) -> set[str]:
    return {name for name in layer_norm_names(state) if name.startswith("transformer.")}


MOVED: list[tuple[str, dict[str, Any], Callable[[State], Iterable[str]], int | None]] = [
    ("bitfit", {"epochs": 2}, biases, None),
    ("bitfit", {"epochs": 2, "biases": ["mlp_in"]}, named("c_fc.bias"), None),
    ("full_finetune", {"learning_rate": 1e-3, "epochs": 5, "batch_size": 8}, set, None),
    ("layer_norm", {"epochs": 2, "batch_size": 8}, layer_norm_names, None),
    ("lora_xs", {**STILL, "rank": 5}, named("nothing"), 9 * 5**2),
    ("lora_xs", {"epochs": 2, "rank": 3, "matrices": ("projection",)}, named("proj"), 3**2),
    ("prolip", {"steps": 5, "views": 2}, named("proj"), None),
    ("svf", STILL, named("nothing"), 2 * 4 * 32 + 16),
    ("svf", {"epochs": 3, "matrices": ("projection", "mlp_in")}, named("proj", "c_fc.weight"), 16 + 2 * 32),
    ("tent", {"batch_size": 8}, layer_norm_names, None),
    ("vera", {**STILL, "rank": 5}, named("nothing"), 9 * 5 + 2 * (3 * 32 + 32 + 128 + 32) + 16),
    ("vera", {"epochs": 2, "rank": 3, "matrices": ("projection",)}, named("proj"), 3 + 16),
]
"""(method, settings, which tensors move, and how many numbers are trained, by default all of these tensors)."""


@pytest.mark.parametrize(("name", "settings", "which", "count"), MOVED)
def test_what_is_said_to_be_trained_moves_and_nothing_else(
    name: str, settings: dict[str, Any], which: Callable[[State], Iterable[str]], count: int | None, backbone: Backbone
) -> None:
    task, before = make_task(backbone, unlabelled=name in ("tent", "layer_norm")), backbone.tower.state_dict_open_clip()
    adapted = adapt(name, task, **settings)
    expected = set(which(before))
    assert moved_tensors(backbone, adapted) == expected
    assert adapted.trainable_parameters == (sum(before[each].numel() for each in expected) if count is None else count)
    features = backbone.encode_images(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    text_head = task.text_head
    torch.testing.assert_close(adapted.classify(features), text_head(features))


@pytest.mark.parametrize(("layer_norms", "which"), [("all", layer_norm_names), ("in_blocks", norms_in_blocks)])
def test_both_stages_of_2sfs_move_what_they_train(
    layer_norms: str, which: Callable[[State], Iterable[str]], backbone: Backbone
) -> None:
    task, before = make_task(backbone), backbone.tower.state_dict_open_clip()
    head = task.head_CD.clone()
    adapted = adapt("two_stage", task, epochs=4, layer_norms=layer_norms)
    assert moved_tensors(backbone, adapted) == set(which(before))
    assert adapted.trainable_parameters == sum(before[name].numel() for name in which(before)) + head.numel()
    trained_CD = classifier(adapted, CosineClassifier).head_CD
    torch.testing.assert_close(trained_CD.norm(dim=-1), torch.ones(3))
    assert (trained_CD - head).abs().max() > 1e-5
    assert torch.equal(task.head_CD, head)


def test_the_head_is_fine_tuned_only_when_asked(backbone: Backbone) -> None:
    task, quick = make_task(backbone), {"learning_rate": 1e-3, "epochs": 2, "batch_size": 8}
    head, features = task.head_CD.clone(), task.support.features(0)
    adapted, plain = (adapt("full_finetune", task, train_head=trained, **quick) for trained in (True, False))
    assert adapted.trainable_parameters == plain.trainable_parameters + head.numel()
    assert not adapted.classify(features).requires_grad
    assert (adapted.classify(features) - plain.classify(features)).abs().max() > 1e-2
    assert torch.equal(task.head_CD, head)


def numbers(names: Iterable[str], tower: ImageTower) -> int:
    state = tower.state_dict_open_clip()
    return sum(state[name].numel() for name in names)


def of_vera(rank: int, tower: ImageTower) -> int:
    a, b = torch.empty(rank, tower.shape.mlp_width), torch.empty(tower.shape.mlp_width, rank)
    layers = [scaled_projection(weight, a, b, 0.1) for weight in weight_matrices(tower).values()]
    return sum(scale.numel() for layer in layers for scale in layer.trained)


WITHOUT_IN_PROJ = ("layer_norm", "attention_out", "mlp_in", "mlp_out")
COUNTS: dict[str, tuple[Callable[[ImageTower], int], int, int]] = {
    "bitfit": (lambda tower: numbers(bias_names(tower.state_dict_open_clip()), tower), 102_912, 272_384),
    "bitfit without in_proj": (
        lambda tower: numbers(bias_names(tower.state_dict_open_clip(), WITHOUT_IN_PROJ), tower), 75_264, 198_656
    ),
    "matrices": (lambda tower: len(weight_matrices(tower)), 49, 97),
    "norms": (lambda tower: numbers(layer_norm_names(tower.state_dict_open_clip()), tower), 39_936, 102_400),
    "norms in blocks": (lambda tower: numbers(norms_in_blocks(tower.state_dict_open_clip()), tower), 36_864, 98_304),
    "prolip": (lambda tower: tower.proj.weight.numel(), 393_216, 786_432),
    "svf": (lambda tower: sum(min(weight.shape) for weight in weight_matrices(tower).values()), 37_376, 99_072),
    "vera 16": (lambda tower: of_vera(16, tower), 84_240, 223_504),
    "vera 256": (lambda tower: of_vera(256, tower), 96_000, 246_784),
}  # fmt: skip
"""What is counted -> how many there are in ViT-B/32 and in ViT-L/14, as the papers or the official codes count."""


@pytest.mark.parametrize("what", COUNTS)
def test_the_papers_towers_have_as_many_trained_numbers_as_published(what: str) -> None:
    count, *expected = COUNTS[what]
    with torch.device("meta"):
        assert [count(ImageTower(shape)) for shape in (VIT_B32, VIT_L14)] == expected


FALLS: list[tuple[str, dict[str, Any], float]] = [
    ("atlas", {"epochs": 6, "batch_size": 8}, 0.8),
    ("bolt", {"top_k": 2, "learning_rate": 3e-2, "batch_size": 8, "epochs": 10}, 1.0),
    ("full_finetune", {"learning_rate": 1e-3, "epochs": 5, "batch_size": 8}, 1.0),
    ("layer_norm", {"batch_size": 8, "epochs": 10, "learning_rate": 1e-2}, 0.8),
    ("prolip", {"steps": 30, "views": 2, "learning_rate": 1e-3}, 1.0),
]
"""(method, settings, bound of the last loss as a share of the first)."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings", "share"), FALLS)
def test_training_lowers_the_loss(name: str, settings: dict[str, Any], share: float, backbone: Backbone) -> None:
    task, curve = with_curve(make_task(backbone, unlabelled=name == "layer_norm"))
    run(name, task, **settings)
    assert len(curve) == settings.get("steps", settings.get("epochs"))
    assert curve[-1] < share * curve[0]


@pytest.mark.parametrize("name", ["atlas", "bolt", "layer_norm"])
def test_the_classifier_after_an_epoch_stays_and_the_last_one_is_the_result(name: str, backbone: Backbone) -> None:
    """Weights are rewritten in place during training, but a tower that was returned must not change."""
    task = make_task(backbone, unlabelled=name == "layer_norm")
    watched, epochs = with_epochs(task, lambda adapted: (adapted, logits_of(task, adapted)))
    _, logits = run(name, watched, epochs=2)
    (adapted, first), (_, last) = epochs
    assert torch.equal(logits_of(task, adapted), first)
    assert not torch.equal(first, last)
    assert torch.equal(last, logits)
