"""CLAP with ZS-LP, TaskRes, CLIP-Adapter, ProKeR and ProLIP against numbers of the official codes.

jusiro/CLAP dbdf409, geekyutao/TaskRes 5195359, gaopengcuhk/CLIP-Adapter 08d07f8 and Dassl.pytorch c61a1b5.
"""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods import proker
from bolt.methods.clap import ClapSettings, class_weights, train_prototypes
from bolt.methods.clip_adapter import ClipAdapterSettings, train_adapter
from bolt.methods.prolip import ProLipSettings, train_projection
from bolt.methods.task_res import EPOCHS, TaskResSettings, text_length, train_residual
from bolt.task.classifiers import AdapterClassifier, CacheClassifier, LinearClassifier
from bolt.task.task import Adapted, Task
from tests.bolt.methods import third_vectors as third
from tests.helpers.adapting import adapt, classifier, with_curve, with_epochs
from tests.helpers.frozen_tasks import clip_like, frozen_task
from tests.helpers.towers import make_task
from tests.helpers.waves import close, plane_wave, unit, wave

EMBEDDINGS = 1 + 0.4 * plane_wave(3, 8, 1.1, 0.9, 0.5)
HEAD = unit(EMBEDDINGS)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
VIEWS = [(EMBEDDINGS[LABELS] + 0.5 * plane_wave(6, 8, 0.7, 1.3, 0.2 + 0.11 * view)).float() for view in range(3)]
QUERIES = (EMBEDDINGS[[0, 1, 2, 1]] + 0.7 * plane_wave(4, 8, 0.37, 1.9, 0.1)).float()
STEPS = (0, 1, 2, 3, 10, 50, 299)


@pytest.fixture
def task(backbone: Backbone) -> Task:
    """Return a task with three views for CLAP."""
    return frozen_task(backbone, lambda view: VIEWS[view - 1], LABELS, HEAD)


@pytest.fixture
def one_view(backbone: Backbone) -> Task:
    """Return a task of the first view alone."""
    return frozen_task(backbone, lambda view: VIEWS[0], LABELS, HEAD)


def test_a_class_is_held_by_its_zero_shot_probability() -> None:
    logits = 100 * unit(torch.cat(VIEWS).double()) @ HEAD.T
    weights = class_weights(logits.softmax(dim=-1), LABELS.repeat(3))
    torch.testing.assert_close(weights, torch.tensor([0.343394, 0.274224, 0.993167]), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("constraint", "losses", "prototype", "logits"),
    [
        (
            "none",
            [0.871154, 0.871139, 0.630804, 0.386339, 0.054362, 0.003049, 0.001509],
            [4.604625, 5.886489, 4.356597, 2.136768, 1.703232, 2.846066, 3.616260, 3.388945],
            [89.48992, 85.05261, 75.81149],
        ),
        (
            "class_adaptive",
            [0.871154, 0.871139, 0.639114, 0.435041, 0.475200, 0.288331, 0.286620],
            [4.353991, 5.046738, 4.387063, 3.107137, 2.292677, 2.389751, 3.116693, 3.982277],
            [91.85545, 88.30772, 81.26556],
        ),
    ],
    ids=["zs_lp", "clap"],
)
def test_the_prototypes_of_clap_follow_the_official_code(
    constraint: Literal["class_adaptive", "none"],
    losses: list[float],
    prototype: list[float],
    logits: list[float],
    task: Task,
) -> None:
    task, seen = with_curve(task)
    adapted = train_prototypes(task, ClapSettings(constraint=constraint, views=3), (3.5 * EMBEDDINGS).float())
    assert [seen[step] for step in STEPS] == pytest.approx(losses, rel=1e-3)
    classify = classifier(adapted, LinearClassifier)
    torch.testing.assert_close(classify.weight_CD[0], F.normalize(torch.tensor(prototype), dim=0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(classify(QUERIES)[0], torch.tensor(logits), rtol=1e-4, atol=5e-3)


def test_text_norm_rescales_rate_and_penalty(task: Task) -> None:
    """Training at length m equals training a unit head with the rate divided by, and the penalty multiplied by m^2."""
    settings = ClapSettings(views=3, text_norm=3.5, epochs=20)
    direct = train_prototypes(task, settings, 3.5 * HEAD).classify(QUERIES)
    torch.testing.assert_close(adapt("clap", task, views=3, text_norm=3.5, epochs=20).classify(QUERIES), direct)


def test_an_absent_class_has_the_mean_weight_of_the_others(backbone: Backbone) -> None:
    probabilities: Tensor = torch.tensor([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2]])
    assert class_weights(probabilities, torch.tensor([0, 2])).tolist() == pytest.approx([0.8, 0.5, 0.2])


@pytest.mark.parametrize(("images", "rows"), [(6, 18), (300, 256), (600, 512)])
def test_an_epoch_has_as_many_batches_as_the_support(
    images: int, rows: int, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has one step of up to 256 rows below 512 images, else a step per full 256 images."""
    features = torch.randn(images, 8, generator=torch.Generator().manual_seed(0))
    seen: list[int] = []
    task = frozen_task(backbone, lambda view: features, torch.arange(images) % 3, HEAD)

    def counted(task: Task, parameters: Any, loss: Any, order: Any, *rest: Any, **how: Any) -> Adapted:
        seen.append(len(order(0)))
        return Adapted(task.text_head)

    monkeypatch.setattr("bolt.methods.clap.fit_task", counted)
    adapt("clap", task, views=3)
    assert seen == [rows]


def direction(residual: list[float]) -> Tensor:
    """Return the first class's unit weight with the given residual, at alpha 0.5."""
    return F.normalize(EMBEDDINGS[0].float() + 0.5 * torch.tensor(residual), dim=-1)


def test_the_residual_of_task_res_follows_the_official_code(one_view: Task) -> None:
    task, losses = with_curve(one_view)
    task, kept = with_epochs(task, lambda adapted: classifier(adapted, LinearClassifier))
    train_residual(task, TaskResSettings(), EMBEDDINGS.float())
    assert [losses[step] for step in (0, 1, 2, 10, 50, 99)] == pytest.approx(
        [0.788065, 0.787984, 0.772196, 0.654022, 0.325079, 0.265072], rel=1e-4
    )
    ten, last = kept[9], kept[99]
    after_10 = [0.017845, 0.017824, -0.017858, -0.017844, -0.017798, 0.017846, 0.017819, -0.017855]
    after_100 = [0.091494, 0.089230, -0.092599, -0.091448, -0.085949, 0.091597, 0.088572, -0.092554]
    torch.testing.assert_close(ten.weight_CD[0], direction(after_10), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(last.weight_CD[0], direction(after_100), rtol=1e-4, atol=1e-6)
    close(last(QUERIES)[0], [91.63371, 88.95912, 80.57217])
    close(last(QUERIES)[1], [89.32193, 92.93109, 86.68965])


def test_the_same_numbers_on_unit_embeddings_go_further(one_view: Task) -> None:
    """The official code on unit embeddings gives the result that a unit text head would give without ``text_norm``."""
    task, losses = with_curve(one_view)
    adapted = train_residual(task, TaskResSettings(), HEAD)
    assert losses[-1] == pytest.approx(0.055930, rel=1e-3)
    close(adapted.classify(QUERIES)[0], [91.16257, 89.08095, 78.94801])


@pytest.mark.parametrize(("width", "length"), [(64, 10 * 8**-0.5), (512, 10.0), (1024, 10.0)])
def test_a_narrow_tower_has_shorter_raw_embeddings(width: int, length: float) -> None:
    assert text_length(TaskResSettings(), width) == pytest.approx(length)


def test_text_norm_is_the_length_of_the_raw_embeddings(one_view: Task) -> None:
    """Training on raw embeddings of length m equals training on the unit head with alpha / m."""
    short = TaskResSettings(epochs=10, text_norm=24.0)
    length = text_length(short, 8)
    assert length == pytest.approx(3)
    by_length = train_residual(one_view, short, length * HEAD).classify(QUERIES)
    by_alpha = train_residual(one_view, replace(short, alpha=0.5 / length), HEAD).classify(QUERIES)
    torch.testing.assert_close(adapt("task_res", one_view, epochs=10, text_norm=24.0).classify(QUERIES), by_length)
    torch.testing.assert_close(by_alpha, by_length, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("shots", "epochs"), [(1, 100), (4, 100), (8, 200), (16, 200)])
def test_task_res_trains_longer_on_more_images(shots: int, epochs: int) -> None:
    labels = torch.arange(3).repeat(shots)
    assert TaskResSettings().epochs_of(labels, EPOCHS) == epochs
    assert TaskResSettings(epochs=7).epochs_of(labels, EPOCHS) == 7


DOWN, UP = (0.4 * plane_wave(2, 8, 0.9, 0.5, 0.3)).float(), (0.4 * plane_wave(8, 2, 1.3, 0.7, 0.6)).float()
UNTRAINED = AdapterClassifier(HEAD, 100.0, DOWN, UP, 0.2)


def test_the_untrained_adapter_gives_the_official_logits() -> None:
    close(UNTRAINED.adapter(QUERIES)[0], [0.589725, 0.660465, 0, 0, 0, 0.688152, 0.552786, 0])
    close(UNTRAINED(QUERIES)[0], [92.75528, 90.75870, 84.23934])
    close(replace(UNTRAINED, ratio=0.0)(QUERIES)[0], [91.88447, 88.86644, 81.92291])


def test_the_adapter_follows_the_official_code(one_view: Task) -> None:
    task, losses = with_curve(one_view)
    task, kept = with_epochs(task, lambda adapted: classifier(adapted, AdapterClassifier))
    train_adapter(task, ClipAdapterSettings(), DOWN, UP)
    assert [losses[step] for step in (0, 1, 2, 3, 10, 39)] == pytest.approx(
        [0.956590, 0.956584, 0.953586, 0.949352, 0.898189, 0.664710], rel=1e-4
    )
    after_40 = kept[39]
    close(after_40.down_HD[0], [0.123345, 0.260153, 0.356585, 0.386790, 0.313425, 0.139704, -0.073391, -0.252589])
    close(after_40.up_DH[0], [0.231832, 0.371134])
    close(after_40.adapter(QUERIES)[0], [0.383038, 0.810333, 0, 0, 0, 0.143061, 0.201720, 0])
    close(after_40(QUERIES)[0], [91.90709, 89.08893, 81.81343])


def test_raw_and_unit_features_give_the_same_logits() -> None:
    torch.testing.assert_close(UNTRAINED(QUERIES), UNTRAINED(F.normalize(QUERIES, dim=-1)), rtol=1e-5, atol=1e-4)


def test_a_dead_adapter_is_the_text_head(one_view: Task) -> None:
    """If V r is negative everywhere, the adapter adds nothing, and only the weight decay changes the layers."""
    adapted = train_adapter(one_view, ClipAdapterSettings(epochs=5), -torch.ones(2, 8), UP)
    expected = 100 * F.normalize(QUERIES, dim=-1) @ HEAD.T
    torch.testing.assert_close(adapted.classify(QUERIES), expected, rtol=1e-5, atol=1e-4)


ONE_PAIR = proker.ProKeRSettings(views=1, betas=(1.5,), lambdas=(0.05,))


def test_prokers_kernel_coefficients_and_logits_are_the_official_ones(backbone: Backbone) -> None:
    adapted = proker.adapt(third.world_task(backbone), ONE_PAIR)
    cache = classifier(adapted, CacheClassifier)
    third.close(proker.kernel(third.vector("world/support"), third.vector("world/support"), 1.5), "proker/kernel_ss")
    third.close(cache.values_NC, "proker/alpha")
    third.close(adapted.classify(third.vector("world/test")), "proker/logits", scale=100)


def test_prokers_leave_one_out_is_the_official_closed_form_and_equals_refitting() -> None:
    rows, labels, text = third.vector("world/support"), third.vector("world/labels"), third.vector("world/text")
    residuals = F.one_hot(labels, 6).double() - rows.double() @ text.double().T
    left_out = proker.KernelRidge(rows, residuals, 1.5).left_out(0.05, len(rows))
    third.close(rows.double() @ text.double().T + left_out, "proker/loo_logits")
    views = torch.cat([rows, F.normalize(rows + 0.1 * rows.flip(0), dim=-1)])
    twice = torch.cat([residuals, F.one_hot(labels, 6).double() - views[24:].double() @ text.double().T])
    predicted = proker.KernelRidge(views, twice, 1.5).left_out(0.05, 24)
    kept = torch.arange(48) % 24 != 5
    refitted = proker.KernelRidge(views[kept], twice[kept], 1.5).coefficients(0.05)
    torch.testing.assert_close(predicted[[5, 29]], proker.kernel(views[[5, 29]], views[kept], 1.5) @ refitted)


def test_prokers_search_on_validation_images_is_the_official_one(backbone: Backbone) -> None:
    task = third.world_task(backbone)
    settings = proker.ProKeRSettings(
        views=1, betas=tuple(torch.linspace(0.5, 3, 6).tolist()), lambdas=tuple(torch.linspace(0.001, 1, 5).tolist())
    )
    adapted = proker.adapt(replace(task, validation=third.with_test_as_validation(task)), settings)
    beta, strength = third.vector("proker/grid_best").tolist()
    assert (adapted.details["beta"], adapted.details["lambda"]) == (beta, strength)
    third.close(adapted.classify(third.vector("world/test")), "proker/grid_logits", scale=100)


def test_one_image_gives_proker_the_authors_pair(backbone: Backbone) -> None:
    single = proker.adapt(clip_like(backbone, shots=1).task, proker.ProKeRSettings())
    assert (single.details["beta"], single.details["lambda"]) == (3.0, 0.05)


PROLIP_VIEWS = [wave(6, 7, 0.7, 1.3, 0.2 + 0.15 * view) for view in range(4)]
PROJECTION = 0.4 * wave(7, 5, 0.9, 0.6, 0.3)
PROLIP_HEAD = F.normalize(0.3 * wave(3, 5, 1.1, 0.9, 0.5) + 0.5, dim=-1)


def trained_projection(steps: int, regularisation: float | None) -> Tensor:
    projection = PROJECTION.clone().requires_grad_()
    settings = ProLipSettings(1e-2, steps=steps, regularisation=regularisation)
    train_projection(projection, PROLIP_VIEWS, LABELS, PROLIP_HEAD, 100.0, settings)
    return projection.detach()


def loss_of(projection: Tensor) -> float:
    """Return the cross-entropy of the first view."""
    return float(F.cross_entropy(100 * F.normalize(PROLIP_VIEWS[0] @ projection, dim=-1) @ PROLIP_HEAD.T, LABELS))


@pytest.mark.parametrize(
    ("steps", "regularisation", "row", "loss"),
    [
        (1, 0.5, (0.108210, 0.323331, 0.388999, 0.355283, 0.160956), None),
        (10, 0.5, (0.116189, 0.367739, 0.350967, 0.378673, 0.194773), 11.823265),
        (10, None, (0.116189, 0.367739, 0.350967, 0.378673, 0.194773), 11.823265),  # k = 2, so lambda is 1/2
        (40, 0.5, (0.220728, 0.511415, 0.212150, 0.278980, 0.337518), 2.169338),
        (40, 20.0, (0.130693, 0.491780, 0.297125, 0.256537, 0.268932), 5.672855),
    ],
)
def test_prolips_training_gives_the_official_numbers(
    steps: int, regularisation: float | None, row: tuple[float, ...], loss: float | None
) -> None:
    assert loss_of(PROJECTION) == pytest.approx(16.491129, abs=1e-4)
    projection = trained_projection(steps, regularisation)
    close(projection[0], row, rtol=0, atol=1e-4)
    assert loss is None or loss_of(projection) == pytest.approx(loss, abs=1e-3)
    if (steps, regularisation) == (40, 0.5):
        assert float((projection - PROJECTION).square().sum()) == pytest.approx(0.676436, abs=1e-4)


def test_one_class_leaves_prolips_projection_as_it_is(backbone: Backbone) -> None:
    adapted = adapt("prolip", make_task(backbone, classes=1), steps=3, views=2)
    assert torch.equal(adapted.tower.proj.weight, backbone.tower.proj.weight)
