"""Meta-learning a start: its gradients against closed forms and finite differences, its draws, and the method."""

import copy
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.methods import METHODS
from bolt.methods.meta_init import meta_recipe
from bolt.training import meta
from bolt.training.loop import Diverged
from bolt.training.meta import (
    HEAD,
    Loss,
    MetaRecipe,
    MetaTask,
    Parameters,
    episode_loss,
    meta_learn,
    outer_gradient,
    twice_differentiable,
)
from tests.helpers.adapting import adapt, logits_of, with_curve, with_epochs
from tests.helpers.towers import SIZE, make_task, random_backbone, weights_of

RATE = 0.1
QUICK = MetaRecipe(steps=3, tasks_per_step=2, support=4, query=4, inner_rate=1e-3, outer_rate=1e-3)
QUICK_REPTILE = replace(QUICK, variant="reptile", outer_rate=1.0)
RECIPES = [QUICK, replace(QUICK, variant="first_order"), QUICK_REPTILE]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TOWER_PART, HEAD_PART = drawn(3, seed=1), drawn(2, seed=2)
START: dict[str, Tensor] = {"w": TOWER_PART, HEAD: HEAD_PART}


def bowl(seed: int) -> tuple[Loss, Tensor, Tensor]:
    """Return A, b and the loss 1/2 x A x - b x of x = (w, head), with a positive definite A."""
    root, b = drawn(5, 5, seed=seed), drawn(5, seed=seed + 1)
    matrix = root @ root.T / 5

    def loss(parameters: Parameters) -> Tensor:
        x = torch.cat([parameters["w"], parameters[HEAD]])
        return 0.5 * x @ matrix @ x - b @ x

    return loss, matrix, b


@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_of_a_quadratic(steps: int) -> None:
    """Inner steps on a quadratic loss are affine, x -> M^n x + ..., so MAML's gradient is (M^n)^T times the query's."""
    support, support_A, support_b = bowl(10)
    query, query_A, query_b = bowl(20)
    x = torch.cat([TOWER_PART, HEAD_PART])
    for _ in range(steps):
        x = x - RATE * (support_A @ x - support_b)
    at_end = query_A @ x - query_b
    through = torch.linalg.matrix_power(torch.eye(5, dtype=torch.float64) - RATE * support_A, steps).T @ at_end
    value = 0.5 * x @ query_A @ x - query_b @ x
    recipe = MetaRecipe(inner_steps=steps, inner_rate=RATE)
    for variant, expected, loss in (
        ("maml", through, value),
        ("first_order", at_end, value),
        ("reptile", torch.cat([TOWER_PART, HEAD_PART]) - x, support(START)),
    ):
        gradients, seen = outer_gradient(START, support, query, replace(recipe, variant=variant))  # type: ignore[arg-type]
        assert set(gradients) == {"w"}, "the head is every episode's own"
        torch.testing.assert_close(gradients["w"], expected[:3], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(seen, loss, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rate", "agree"), [(1e-12, True), (RATE, False)])
def test_without_an_inner_rate_both_orders_agree(rate: float, agree: bool) -> None:
    support, query = bowl(10)[0], bowl(20)[0]
    one, other = (
        outer_gradient(START, support, query, MetaRecipe(variant, inner_rate=rate))[0]["w"]
        for variant in ("maml", "first_order")
    )
    assert torch.allclose(one, other, rtol=1e-10, atol=0) == agree


def float64_loss(tower: ImageTower, images: Tensor, labels: Tensor) -> Loss:
    def loss(parameters: Parameters) -> Tensor:
        own = {name: tensor for name, tensor in parameters.items() if name != HEAD}
        features = functional_call(tower, own, (images,))
        logits = torch.nn.functional.normalize(features, dim=-1) @ parameters[HEAD].T
        return torch.nn.functional.cross_entropy(logits, labels)

    return loss


@pytest.mark.parametrize("quick_gelu", [True, False])
def test_the_second_order_gradient_of_a_tower_is_its_finite_difference(quick_gelu: bool) -> None:
    """The expected slopes are d query(F(theta + e d)) / d e along random directions d, in float64."""
    tower = copy.deepcopy(random_backbone(quick_gelu=quick_gelu).tower).double()
    encoder = twice_differentiable(tower)
    start = {name: tensor.detach() for name, tensor in encoder.named_parameters()} | {HEAD: 3 * drawn(3, 16, seed=3)}
    support, query = (float64_loss(encoder, drawn(4, 3, SIZE, SIZE, seed=seed), torch.arange(4) % 3) for seed in (4, 5))
    recipe = MetaRecipe(inner_steps=2, inner_rate=0.05)
    with sdpa_kernel(SDPBackend.MATH):
        gradients, _ = outer_gradient(start, support, query, recipe)
        first_order, _ = outer_gradient(start, support, query, replace(recipe, variant="first_order"))

        def end(direction: Mapping[str, Tensor], step: float) -> float:
            moved = {name: tensor + step * direction.get(name, torch.zeros(())) for name, tensor in start.items()}
            return float(outer_gradient(moved, support, query, recipe)[1])

        for seed in range(3):
            direction = {name: drawn(*tensor.shape, seed=seed) for name, tensor in gradients.items()}
            slope = (end(direction, 1e-5) - end(direction, -1e-5)) / 2e-5
            claimed = float(sum((gradients[name] * direction[name]).sum() for name in gradients))
            blunt = float(sum((first_order[name] * direction[name]).sum() for name in gradients))
            assert claimed == pytest.approx(slope, rel=1e-5, abs=1e-7)
            assert abs(blunt - slope) > 1e-3 * abs(slope), "the example must tell the orders apart"


@pytest.mark.parametrize("quick_gelu", [True, False])
def test_the_twice_differentiable_tower_is_the_same_network(quick_gelu: bool) -> None:
    backbone = random_backbone(quick_gelu=quick_gelu)
    twin = twice_differentiable(backbone.tower)
    images = drawn(4, 3, SIZE, SIZE).float()
    torch.testing.assert_close(twin(images), backbone.tower(images), rtol=1e-5, atol=1e-6)
    theirs = dict(backbone.tower.named_parameters())
    assert all(tensor is theirs[name] for name, tensor in twin.named_parameters())


def test_an_episode_is_scored_as_the_method_classifies(backbone: Backbone) -> None:
    images, labels = drawn(4, 3, SIZE, SIZE).float(), torch.tensor([0, 1, 2, 0])
    task = make_task(backbone)
    start = dict(backbone.tower.named_parameters()) | {HEAD: backbone.logit_scale * task.head_CD}
    logits = backbone.logit_scale * torch.nn.functional.normalize(backbone.tower(images), dim=-1) @ task.head_CD.T
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(episode_loss(backbone.tower, images, labels)(start), expected)


def datasets(backbone: Backbone, count: int = 3, seen: list[Any] | None = None) -> list[MetaTask]:
    """Return datasets of 30 blobs each, every image with views of its own."""

    def of(index: int) -> MetaTask:
        support = make_task(backbone, shots=10, seed=index + 1).support
        name = f"blobs_{index}"

        def pixels(view: int, rows: Tensor) -> Tensor:
            if seen is not None:
                seen.append((name, view, rows.tolist()))
            return support.pixels(view, rows)

        return MetaTask(name, make_task(backbone).head_CD, support.labels_N, pixels)

    return [of(index) for index in range(count)]


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.variant)
def test_a_start_is_learned_and_keyed(recipe: MetaRecipe, backbone: Backbone) -> None:
    before = {name: tensor.clone() for name, tensor in backbone.tower.state_dict_open_clip().items()}
    generator = torch.get_rng_state()
    tasks = datasets(backbone)
    start = meta_learn(backbone, tasks, recipe, seed=1)
    assert list(start) == list(before)
    assert not any(torch.equal(start[name], before[name]) for name in before)
    assert not any(tensor.requires_grad for tensor in start.values())
    assert same(start, meta_learn(backbone, tasks[::-1], recipe, seed=1))
    assert not same(start, meta_learn(backbone, tasks, recipe, seed=2))
    assert same(before, backbone.tower.state_dict_open_clip())
    assert torch.equal(generator, torch.get_rng_state())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.variant)
def test_the_meta_loss_falls(recipe: MetaRecipe, backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta, "REPORT_INTERVAL", 5)
    curve: list[float] = []
    if recipe.variant == "reptile":
        recipe = replace(recipe, inner_rate=1e-2, inner_steps=3)
    recipe = replace(recipe, steps=18, support=8, query=8)
    meta_learn(backbone, datasets(backbone), recipe, seed=1, report=lambda at, row: curve.append(row["meta_loss"]))
    assert len(curve) == 4
    assert curve[-1] < 0.8 * curve[0]


@pytest.mark.slow
def test_episodes_are_keyed_and_their_halves_disjoint(backbone: Backbone) -> None:
    seen: list[Any] = []
    meta_learn(backbone, datasets(backbone, 5, seen), replace(QUICK, steps=8), seed=1)
    steps = [seen[at : at + 2] for at in range(0, len(seen), 2)]
    assert len(steps) == 8
    for step, episodes in enumerate(steps):
        assert [view for _, view, _ in episodes] == [step + 1] * 2
        assert len({name for name, _, _ in episodes}) == 2
        assert all(len(set(rows)) == 8 for _, _, rows in episodes)
    assert len({name for name, _, _ in seen}) == 5
    assert len({tuple(rows) for _, _, rows in seen}) == len(seen)
    # A dataset's episode does not depend on the other datasets.
    alone: list[Any] = []
    meta_learn(backbone, datasets(backbone, 5, alone)[:1], replace(QUICK, steps=8), seed=1)
    shared = [episode for episode in seen if episode[0] == "blobs_0"]
    assert shared
    assert all(episode in alone for episode in shared)


def test_reptile_goes_its_share_of_the_way_to_the_inner_end(backbone: Backbone) -> None:
    tasks = datasets(backbone, 1)
    whole, half = (
        meta_learn(backbone, tasks, replace(QUICK_REPTILE, steps=1, outer_rate=share), seed=1) for share in (1.0, 0.5)
    )
    seen: list[Any] = []
    meta_learn(backbone, datasets(backbone, 1, seen), replace(QUICK, steps=1), seed=1)
    _, view, rows = seen[0]
    tower = backbone.tower.copy(trainable=backbone.tower.state_dict_open_clip())
    support = torch.tensor(rows[:4])
    features = tower(backbone.normalise(tasks[0].pixels(view, support)))
    logits = backbone.logit_scale * torch.nn.functional.normalize(features, dim=-1) @ tasks[0].head_CD.T
    torch.nn.functional.cross_entropy(logits, tasks[0].labels_N[support]).backward()
    with torch.no_grad():
        for tensor in tower.parameters():
            assert tensor.grad is not None
            tensor.sub_(QUICK.inner_rate * tensor.grad)
    end, origin = tower.state_dict_open_clip(), backbone.tower.state_dict_open_clip()
    for name in origin:
        torch.testing.assert_close(whole[name], end[name], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(half[name], (end[name] + origin[name]) / 2, rtol=1e-5, atol=1e-7)


def test_reptile_goes_to_the_mean_of_the_inner_ends(backbone: Backbone) -> None:
    tasks, recipe = datasets(backbone, 2), replace(QUICK_REPTILE, steps=1)
    one, other, both = (meta_learn(backbone, chosen, recipe, seed=1) for chosen in (tasks[:1], tasks[1:], tasks))
    for name, end in both.items():
        torch.testing.assert_close(end, (one[name] + other[name]) / 2, rtol=1e-5, atol=1e-7)


def test_the_outer_gradient_is_clipped(backbone: Backbone) -> None:
    """With a gradient far below its epsilon, AdamW moves nothing."""
    origin, tasks = backbone.tower.state_dict_open_clip(), datasets(backbone, 1)
    for clip_norm, moves in ((1e-12, False), (0.0, True)):
        start = meta_learn(backbone, tasks, replace(QUICK, clip_norm=clip_norm), seed=1)
        assert (max(float((start[name] - origin[name]).abs().max()) for name in origin) > 1e-4) == moves


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [QUICK, QUICK_REPTILE], ids=lambda recipe: recipe.variant)
def test_an_interrupted_training_is_the_same(
    recipe: MetaRecipe, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta, "REPORT_INTERVAL", 2)
    saved: list[io.BytesIO] = []

    def keep(interval: int, state: Callable[[], dict[str, Any]]) -> None:
        saved.append(io.BytesIO())
        torch.save(state(), saved[-1])

    def learned(**more: Any) -> tuple[Mapping[str, Tensor], list[Any]]:
        seen: list[Any] = []
        own, report = replace(recipe, steps=5), lambda at, row: seen.append((at, dict(row)))
        return meta_learn(backbone, datasets(backbone), own, seed=1, report=report, **more), seen

    end, whole = learned(on_interval_end=keep)
    assert [at for at, _ in whole] == [0, 1, 2]
    for interval in (0, 1):
        saved[interval].seek(0)
        resumed, rest = learned(resume=torch.load(saved[interval], weights_only=True))
        assert same(end, resumed)
        assert rest == whole[interval + 1 :]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.variant)
def test_a_loss_that_is_no_number_names_its_update(recipe: MetaRecipe, backbone: Backbone) -> None:
    seen: list[Any] = []
    tasks = datasets(backbone, 3, seen)
    tasks[0] = replace(tasks[0], head_CD=tasks[0].head_CD * torch.nan)
    with pytest.raises(Diverged) as caught:
        meta_learn(backbone, tasks, replace(recipe, steps=8, tasks_per_step=1), seed=1)
    first = min(view - 1 for name, view, _ in seen if name == "blobs_0")
    assert first > 0, "the example must meet a sound dataset first"
    assert str(caught.value) == f"the loss of outer update {first} is nan"


@pytest.mark.parametrize(
    ("chosen", "recipe", "says"),
    [([], QUICK, "no dataset"), ([0, 0], QUICK, "blobs_0"), ([0, 1], MetaRecipe(), "64 images, but blobs_0 has 30")],
)
def test_impossible_trainings_are_refused(chosen: list[int], recipe: MetaRecipe, says: str, backbone: Backbone) -> None:
    tasks = datasets(backbone, 2)
    with pytest.raises(ValueError, match=says):
        meta_learn(backbone, [tasks[index] for index in chosen], recipe, seed=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("variant", "second_order"), ("steps", 0), ("query", 0), ("inner_rate", 0.0), ("outer_rate", float("nan")),
        ("clip_norm", -1.0),
    ],
)  # fmt: skip
def test_a_recipe_names_its_wrong_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        MetaRecipe(**{field: value})


def test_the_method_states_its_start() -> None:
    method = METHODS["meta_init"]
    assert method.meta_recipe is not None
    assert method.meta_recipe(method.configure({})) == MetaRecipe()
    changes = {"variant": "reptile", "meta_steps": 7, "meta_clip_norm": 2.0, "clip_norm": 3.0, "meta_inner_rate": 1}
    settings = method.configure(changes)
    assert settings.clip_norm == 3.0
    assert meta_recipe(settings) == MetaRecipe(variant="reptile", steps=7, clip_norm=2.0, inner_rate=1.0)
    assert meta_recipe(method.configure({"preset": "first_order"})) == MetaRecipe(variant="first_order")
    assert meta_recipe(method.configure({"preset": "reptile"})).outer_rate == 1.0
    smaller = {"preset": "reptile", "meta_query": 1}  # an episode then needs fewer images of a dataset
    assert method.configure_strictly(smaller, "fewshot").meta_query == 1
    with pytest.raises(ValueError, match="meta_clip_norm has no effect while variant is 'reptile'"):
        method.configure_strictly({"preset": "reptile", "meta_clip_norm": 2.0}, "fewshot")
    with pytest.raises(ValueError, match="meta_steps"):
        method.configure({"meta_steps": 0})
    assert method.source_directions(settings, 768, 16) == 0


def test_fine_tuning_begins_at_the_start_and_moves_tower_and_head(backbone: Backbone) -> None:
    start = {name: 1.1 * tensor for name, tensor in backbone.tower.state_dict_open_clip().items()}
    task = replace(make_task(backbone), initial=start)
    still = adapt("meta_init", task, epochs=1, learning_rate=1e-12)
    kept = weights_of(still)
    assert all(torch.allclose(kept[name], start[name], rtol=0, atol=1e-9) for name in start)
    text_head = replace(still, classify=task.text_head)
    torch.testing.assert_close(logits_of(task, still), logits_of(task, text_head), rtol=1e-4, atol=1e-4)
    watched, curve = with_curve(task)
    watched, after = with_epochs(watched, lambda adapted: logits_of(task, adapted))
    adapted = adapt("meta_init", watched, epochs=8, batch_size=8, learning_rate=1e-3)
    moved = weights_of(adapted)
    assert all(not torch.equal(moved[name], start[name]) for name in start)
    unit = torch.nn.functional.normalize(drawn(5, 16).float(), dim=-1)
    assert not torch.allclose(adapted.classify(unit), backbone.logit_scale * unit @ task.head_CD.T, atol=1e-3)
    assert not adapted.classify(unit).requires_grad
    assert adapted.trainable_parameters == sum(tensor.numel() for tensor in start.values()) + task.head_CD.numel()
    assert curve[-1] < 0.8 * curve[0]
    assert len(after) == 8
    assert torch.equal(after[-1], logits_of(task, adapted))
    with pytest.raises(ValueError, match="meta-learned tower"):
        adapt("meta_init", replace(task, initial=None))
