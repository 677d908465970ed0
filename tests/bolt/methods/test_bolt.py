"""BOLT: its start, its training, and the switches and settings of both."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import PROJECTION, matrix_names
from bolt.methods import METHODS
from bolt.methods.bolt import BoltSettings, PooledStartSettings, pooled_start
from bolt.protocol import PUBLISHED, STRICT
from bolt.spectral.bases import diagonal_coefficients, orthonormal_basis
from bolt.spectral.sources import PooledBasis
from bolt.task.task import Adapted, Task
from bolt.training import adaptation
from bolt.training.loop import cross_entropy
from tests.helpers.adapting import adapt, logits_of, run, with_epochs, with_looks
from tests.helpers.towers import RandomSources, make_task, moved_tensors, weights_of

ALPHAS = (1.0, 3.0, 10.0, 30.0)
MLP = "transformer.resblocks.0.mlp.c_fc.weight"


def start_of(task: Task, **settings: Any) -> dict[str, Tensor]:
    """Return the pooled coefficients by matrix."""
    return dict(
        pooled_start(task, PooledStartSettings(**{"top_k": 2, "alphas": (1.0,), **settings})).unscaled.coefficients
    )


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
    assert moved_tensors(backbone, adapted) == set(matrices)


def test_the_training_free_method_is_bolts_start(backbone: Backbone) -> None:
    task = make_task(backbone)
    pooled, logits = run("bolt_pooled", task)
    started, at_start = run("bolt", task, epochs=1, learning_rate=1e-12)
    assert pooled.trainable_parameters == 0
    assert pooled.details == started.details
    torch.testing.assert_close(at_start, logits, rtol=1e-4, atol=1e-4)


def test_the_best_epoch_is_by_the_mean_over_batches(monkeypatch: pytest.MonkeyPatch, backbone: Backbone) -> None:
    """Twelve images are batches of 8 and 4. Epoch 1 has the lowest mean loss over images, epoch 2 over batches."""
    extra = {0: (9.0, 9.0), 1: (1.0, 4.0), 2: (2.0, 2.6), 3: (9.0, 9.0)}  # for the full and the partial batch
    calls = count()

    def made_up(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels) * 1e-3 + extra[next(calls) // 2][len(labels) == 4]

    monkeypatch.setattr(adaptation, "cross_entropy", made_up)
    task = make_task(backbone, protocol=STRICT.with_switches(epoch_selection="best_train_loss"))
    watched, snapshots = with_epochs(task, lambda adapted: logits_of(task, adapted))
    _, logits = run("bolt", watched, epochs=4, learning_rate=0.05)
    torch.testing.assert_close(logits, snapshots[2], rtol=0, atol=1e-4)
    assert not torch.allclose(logits, snapshots[1], rtol=0, atol=1e-2)


@pytest.mark.parametrize("protocol", [STRICT, PUBLISHED], ids=lambda protocol: protocol.name)
def test_bolt_on_empty_task_vectors_is_refused(protocol: Any, backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="every task vector"):
        run("bolt", make_task(backbone, sources=RandomSources(backbone, scale=0.0), protocol=protocol))


def test_a_matrix_that_no_source_changed_stays_as_it_is(backbone: Backbone) -> None:
    sources = RandomSources(backbone)
    for vector in sources.vectors.values():
        vector[MLP] = torch.zeros_like(vector[MLP])
    adapted, _ = run("bolt", make_task(backbone, sources=sources))
    assert f"trained/{MLP}" not in adapted.coefficients
    assert torch.equal(weights_of(adapted)[MLP], backbone.tower.state_dict_open_clip()[MLP])


@pytest.mark.parametrize(("factor", "shrunk"), [(0.0, 0.5), (1.0, 1.0)], ids=["zero", "copy"])
def test_a_zero_source_lowers_the_mean_and_a_copy_keeps_it(factor: float, shrunk: float, backbone: Backbone) -> None:
    """Neither adds a direction."""
    double, single = RandomSources(backbone, count=1), RandomSources(backbone, count=1)
    double.vectors["again"] = {name: factor * tensor for name, tensor in double.vectors["source_0"].items()}
    two, one = (start_of(make_task(backbone, sources=sources)) for sources in (double, single))
    for name, pooled in one.items():
        torch.testing.assert_close(two[name], pooled * shrunk)


def test_one_source_starts_at_its_singular_values(backbone: Backbone) -> None:
    sources = RandomSources(backbone, count=1)
    pooled = start_of(make_task(backbone, sources=sources), top_k=3)
    for name, values in pooled.items():
        expected = torch.linalg.svdvals(sources.vectors["source_0"][name])[:3]
        torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-6)


def test_the_smallest_of_equally_good_scales_wins(backbone: Backbone) -> None:
    """The sources are so weak that no scale changes a prediction, so all candidates tie."""
    task = make_task(backbone, sources=RandomSources(backbone, scale=1e-9))
    assert pooled_start(task, PooledStartSettings(top_k=2, alphas=(10.0, 5.0, 7.0))).alpha.scale == 5.0


def test_a_single_scale_is_used_without_a_look_at_the_support(backbone: Backbone) -> None:
    task, looks = with_looks(make_task(backbone))
    assert pooled_start(task, PooledStartSettings(top_k=2, alphas=(4.0,))).alpha == (4.0, "fixed")
    assert not looks


def test_the_scale_is_the_most_accurate_on_the_support(backbone: Backbone) -> None:
    task = make_task(backbone, sources=RandomSources(backbone, scale=0.1))
    correct = []
    for alpha in ALPHAS:
        predicted = logits_of(task, adapt("bolt_pooled", task, top_k=2, alphas=(alpha,))).argmax(dim=-1)
        correct.append(int((predicted == task.support.labels_N).sum()))
    assert len(set(correct)) > 1, "the example must tell the scales apart"
    chosen = pooled_start(task, PooledStartSettings(top_k=2, alphas=ALPHAS))
    assert chosen.alpha == (ALPHAS[correct.index(max(correct))], "support")


@pytest.mark.parametrize(("alpha_views", "views"), [("plain", [0, 0, 0]), ("augmented", [1, 2, 3])])
def test_the_sweep_scores_the_views_the_protocol_names(alpha_views: str, views: list[int], backbone: Backbone) -> None:
    """``augmented`` reads a new view for every candidate, ``plain`` always the un-augmented view."""
    task, looks = with_looks(make_task(backbone, protocol=STRICT.with_switches(alpha_views=alpha_views)))
    pooled_start(task, PooledStartSettings(top_k=2, alphas=(1.0, 3.0, 5.0)))
    assert [view for view, _ in looks] == views


@pytest.mark.parametrize("test_time", [False, True])
def test_without_labels_the_scale_is_the_most_informative(test_time: bool, backbone: Backbone) -> None:
    """The expected scale is from all probabilities at once, in float64."""
    task, scores = make_task(backbone, sources=RandomSources(backbone, scale=0.1), unlabelled=test_time), []
    for alpha in ALPHAS:
        p = logits_of(task, adapt("bolt_pooled", task, top_k=2, alphas=(alpha,))).double().softmax(dim=-1)
        mean = p.mean(dim=0)
        scores.append(float((p * p.log()).sum(dim=1).mean() - (mean * mean.log()).sum()))
    assert len({round(score, 3) for score in scores}) == len(ALPHAS), "the example must tell the scales apart"
    if not test_time:
        task = replace(task, support=replace(task.support, labels_N=torch.zeros(12, dtype=torch.long)))
    start = pooled_start(task, PooledStartSettings(top_k=2, alphas=ALPHAS, alpha_by="mutual_information"))
    assert start.alpha == (ALPHAS[scores.index(max(scores))], "mutual information")


def test_the_choice_without_labels_looks_at_a_keyed_part(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bolt.methods.common.scale_selection._UNLABELLED", 7)
    task, looks = with_looks(make_task(backbone, unlabelled=True))
    pooled_start(task, PooledStartSettings(alphas=(1.0, 3.0)))
    assert looks == 2 * [(0, sorted(task.test_images.order("alpha", 0, 30)[:7].tolist()))]


def test_published_at_test_time_asks_the_oracle(backbone: Backbone) -> None:
    protocol = STRICT.with_switches(tta_alpha="test_labels")
    task = make_task(backbone, unlabelled=True, protocol=protocol)
    asked: list[Adapted] = []

    def oracle(adapted: Adapted) -> float:
        asked.append(adapted)
        return [1.0, 5.0, 5.0][len(asked) - 1]

    start = pooled_start(replace(task, oracle=oracle), PooledStartSettings(top_k=2, alphas=(3.0, 7.0, 5.0)))
    assert start.alpha == (5.0, "test labels")
    assert len({weights_of(adapted)[MLP][0, 0].item() for adapted in asked}) == 3


def test_at_test_time_the_start_chooses_trusted_images(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def watched(task: Task, trainable: Any, recipe: Any, **more: Any) -> Adapted:
        given.append(more["start"])
        return adaptation.adapted(task, trainable)

    monkeypatch.setattr("bolt.methods.bolt.train", watched)
    adapted = adapt("bolt", make_task(backbone, unlabelled=True), top_k=2, alphas=(3.0,))
    adapt("bolt", make_task(backbone), top_k=2, alphas=(3.0,))
    assert torch.equal(given[0].state_dict_open_clip()[MLP], weights_of(adapted)[MLP])
    assert given[1] is None
    settings = METHODS["bolt"].configure({}, "tta")
    assert (settings.epochs, settings.batch_size) == (1, 32)


def test_coefficients_that_could_never_move_are_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="alphas"):
        run("bolt", make_task(backbone), alphas=[0.0], sign="relu")


class Signed(RandomSources):
    """Sources with which every second pooled coefficient is negative."""

    def pooled_basis(self, matrix: str, top_k: int) -> PooledBasis:
        start = super().pooled_basis(matrix, top_k)
        sign = 1.0 - 2.0 * (torch.arange(len(start.pooled)) % 2)
        return PooledBasis(start.basis, start.pooled.abs() * sign)


@pytest.mark.parametrize("by", ["protocol", "setting"])
def test_the_published_sign_rule_ignores_and_never_moves_negative_entries(by: str, backbone: Backbone) -> None:
    relu = STRICT.with_switches(sigma_sign="relu") if by == "protocol" else STRICT
    task = make_task(backbone, protocol=relu, sources=Signed(backbone))
    adapted, _ = run("bolt", task, sign="relu" if by == "setting" else "free")
    free, _ = run("bolt", make_task(backbone, sources=Signed(backbone)))
    for key, end in adapted.coefficients.items():
        if key.startswith("trained/"):
            pooled = adapted.coefficients[key.replace("trained/", "pooled/")]
            start = float(adapted.details["alpha"]) * pooled
            assert torch.equal(end[1::2], start[1::2])
            assert not torch.equal(end[0::2], start[0::2])
            assert not torch.equal(free.coefficients[key][1::2], float(free.details["alpha"]) * pooled[1::2])
    basis = Signed(backbone).pooled_basis(MLP, 2).basis
    update = weights_of(adapted)[MLP] - backbone.tower.state_dict_open_clip()[MLP]
    used = diagonal_coefficients(basis, update)
    torch.testing.assert_close(used, adapted.coefficients[f"trained/{MLP}"].clamp_min(0), rtol=1e-4, atol=1e-6)


def test_a_padded_basis_is_as_wide_as_that_of_the_whole_pool(backbone: Backbone) -> None:
    """Two sources with room for six give 6 x 2 columns, of which the first 2 x 2 are those of two sources alone."""
    padded = STRICT.with_switches(task_count_basis="padded")
    sources = RandomSources(backbone, count=2)
    follow = start_of(make_task(backbone, sources=sources))
    wide = start_of(make_task(backbone, sources=sources, protocol=padded), padded_sources=6)
    for name, values in wide.items():
        assert len(values) == 12, name
        torch.testing.assert_close(values[:4], follow[name])
        assert bool(values[4:].any()), "arbitrary directions have small coefficients, not zero ones"
    again = start_of(make_task(backbone, sources=sources, protocol=padded), padded_sources=6)
    assert all(torch.equal(wide[name], again[name]) for name in wide)
    crowded = start_of(make_task(backbone, sources=sources, protocol=padded), padded_sources=2)
    assert all(torch.equal(crowded[name], follow[name]) for name in follow)


def test_in_a_padded_basis_sources_give_as_many_directions_as_if_all_were_there(backbone: Backbone) -> None:
    padded = STRICT.with_switches(task_count_basis="padded")
    sources = RandomSources(backbone, count=2)
    task = make_task(backbone, sources=sources, protocol=padded)
    wide = start_of(task, top_k=8, padded_sources=16)
    narrow = start_of(make_task(backbone, sources=sources), top_k=2)
    assert len(wide[MLP]) == 32 == min(backbone.tower.state_dict_open_clip()[MLP].shape)
    torch.testing.assert_close(wide[MLP][:4], narrow[MLP])


def test_the_authors_sweep_is_over_three_learning_rates() -> None:
    candidates = METHODS["bolt"].candidates(BoltSettings(top_k=3))
    assert [candidate.learning_rate for candidate in candidates] == pytest.approx([1e-3, 5e-3, 1e-2])
    assert {candidate.top_k for candidate in candidates} == {3}


def test_sum_pooling_is_the_mean_times_the_sources(backbone: Backbone) -> None:
    task = make_task(backbone)
    mean, total = start_of(task), start_of(task, pooling="sum")
    assert all(torch.equal(total[name], 4 * mean[name]) for name in mean)


def test_max_pooling_takes_the_largest_of_the_sources_own_coefficients(backbone: Backbone) -> None:
    class Counting(RandomSources):
        reads = 0

        def task_vector(self, source: str) -> Any:
            self.reads += 1
            return super().task_vector(source)

    sources = Counting(backbone)
    largest = start_of(make_task(backbone, sources=sources), pooling="max")
    assert sources.reads == 8, "each source is read once for the mean and once for the maximum, not once a matrix"
    for name in (MLP, PROJECTION):
        basis = sources.pooled_basis(name, 2).basis
        separately = [diagonal_coefficients(basis, vector[name]) for vector in sources.vectors.values()]
        torch.testing.assert_close(largest[name], torch.stack(separately).max(dim=0).values)


@pytest.mark.parametrize(
    ("kind", "part"),
    [("attention_in", "in_proj"), ("attention_out", "out_proj"), ("mlp_in", "c_fc"), ("mlp_out", "c_proj")],
)
def test_only_the_named_kinds_of_matrices_get_a_basis(kind: str, part: str, backbone: Backbone) -> None:
    pooled = start_of(make_task(backbone), matrices=(kind, "projection"))
    assert len(pooled) == backbone.tower.shape.layers + 1
    assert all(part in name or name == PROJECTION for name in pooled)


def test_averaged_tensors_move_by_the_mean_task_vector(backbone: Backbone) -> None:
    sources = RandomSources(backbone)
    settings = {"top_k": 2, "alphas": (3.0,), "other_tensors": "averaged", "matrices": ("mlp_in",)}
    after = weights_of(adapt("bolt_pooled", make_task(backbone, sources=sources), **settings))
    matrices = matrix_names(backbone.tower.state_dict_open_clip())
    for name, before in backbone.tower.state_dict_open_clip().items():
        if name not in matrices:
            torch.testing.assert_close(after[name], before + sources.mean_task_vector(name))
        elif "c_fc" not in name:
            assert torch.equal(after[name], before), name


def test_whitening_equals_the_polar_form_on_well_conditioned_sources(backbone: Backbone) -> None:
    task = make_task(backbone, sources=RandomSources(backbone, count=2))
    polar = start_of(task)
    near = start_of(task, orthogonalisation="whitening", whitening_epsilon=1e-10)
    far = start_of(task, orthogonalisation="whitening", whitening_epsilon=1.0)
    for name, values in polar.items():
        torch.testing.assert_close(near[name], values, rtol=1e-4, atol=1e-5)
        assert float(far[name].norm()) < 0.9 * float(values.norm())


@pytest.mark.parametrize("basis", ["pretrained", "pretrained_trailing", "random"])
def test_another_basis_starts_at_the_projected_mean(basis: str, backbone: Backbone) -> None:
    task = make_task(backbone)
    settings = PooledStartSettings(top_k=2, alphas=(1.0,), basis=basis)  # type: ignore[arg-type]
    own, other = start_of(task), pooled_start(task, settings)
    assert {name: len(s) for name, s in own.items()} == {
        name: len(s) for name, s in other.unscaled.coefficients.items()
    }
    for name, coefficients in other.unscaled.coefficients.items():
        expected = diagonal_coefficients(other.unscaled.bases[name], task.sources.mean_task_vector(name))
        torch.testing.assert_close(coefficients, expected)
        assert not torch.equal(coefficients, own[name])


def test_a_random_basis_is_another_for_every_seed(backbone: Backbone) -> None:
    task = make_task(backbone)
    first, again, second = (start_of(replace(task, seed=seed), basis="random")[MLP] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_the_basis_of_the_sources_is_no_part_of_a_cells_identity(backbone: Backbone) -> None:
    method = METHODS["bolt"]
    assert "basis" not in dict(method.identity_of(method.configure({})))
    assert dict(method.identity_of(method.configure({"basis": "random"})))["basis"] == "random"


def test_whitening_survives_duplicates_and_padding(backbone: Backbone) -> None:
    sources = RandomSources(backbone, count=2)
    sources.vectors["again"] = sources.vectors["source_0"]
    padded = STRICT.with_switches(task_count_basis="padded")
    pooled = start_of(make_task(backbone, sources=sources, protocol=padded), orthogonalisation="whitening")
    assert all(bool(torch.isfinite(values).all()) for values in pooled.values())
    m, n = sources.vectors["again"][MLP].shape
    assert len(pooled[MLP]) == 6 > orthonormal_basis(sources.directions(MLP, 2), (m, n)).rank
