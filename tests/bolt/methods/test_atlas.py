"""aTLAS: the composed tensors, the length of training, and the deviations under the published protocol."""

from dataclasses import replace

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.atlas import AtlasSettings, adapt, random_groups
from bolt.protocol import PUBLISHED, STRICT
from bolt.training.adaptation import oversampling
from bolt.training.loop import clip_gradient
from tests.helpers.adapting import with_looks
from tests.helpers.towers import RandomSources, make_task, moved_tensors, weights_of

TINY = AtlasSettings(epochs=2, batch_size=8)
AS_PUBLISHED = STRICT.with_switches(atlas="as_published")


def test_every_tensor_is_the_base_plus_its_share_of_every_source(backbone: Backbone) -> None:
    task = make_task(backbone)
    base = backbone.tower.state_dict_open_clip()
    adapted = adapt(task, TINY)
    lambda_NP = adapted.coefficients["lambda"]
    assert lambda_NP.shape == (4, len(base))
    assert adapted.trainable_parameters == adapted.details["coefficients"] == 4 * len(base)
    assert bool(lambda_NP.count_nonzero(dim=0).all()), "every tensor moves: biases, norms, convolution, embeddings"
    vectors = [task.sources.task_vector(source) for source in task.sources.names]
    for position, (name, tensor) in enumerate(weights_of(adapted).items()):
        update = sum(lambda_NP[row, position] * vector[name] for row, vector in enumerate(vectors))
        torch.testing.assert_close(tensor, base[name] + update, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("partitions", [0, 3])
def test_task_vectors_of_zeros_stay_zero_shot(partitions: int, backbone: Backbone) -> None:
    task = make_task(backbone, sources=RandomSources(backbone, scale=0.0))
    adapted = adapt(task, replace(TINY, partitions=partitions))
    assert adapted.coefficients["lambda"].count_nonzero() == 0
    assert not moved_tensors(backbone, adapted)


def test_equal_sources_move_together(backbone: Backbone) -> None:
    sources = RandomSources(backbone)
    sources.vectors["source_1"] = sources.vectors["source_0"]
    lambda_NP = adapt(make_task(backbone, sources=sources), TINY).coefficients["lambda"]
    torch.testing.assert_close(lambda_NP[0], lambda_NP[1], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(lambda_NP[0], lambda_NP[2], rtol=1e-3, atol=1e-4)


def test_a_task_vector_too_large_for_its_storage_is_named(backbone: Backbone) -> None:
    name, sources = "transformer.resblocks.1.mlp.c_fc.bias", RandomSources(backbone)
    sources.vectors["source_2"][name][3] = 1e6
    with pytest.raises(ValueError, match=rf"source_2.*{name}.*float16"):
        adapt(make_task(backbone, sources=sources), replace(TINY, storage="float16"))


def test_a_task_vector_of_another_tower_is_named(backbone: Backbone) -> None:
    sources = RandomSources(backbone)
    sources.vectors["source_1"]["proj"] = sources.vectors["source_1"]["proj"].T
    with pytest.raises(ValueError, match=r"source_1 has no tensor proj of the shape \(32, 16\)"):
        adapt(make_task(backbone, sources=sources), TINY)


@pytest.mark.slow
def test_half_precision_storage_changes_little(backbone: Backbone) -> None:
    full, half = (
        adapt(make_task(backbone), replace(TINY, learning_rate=1e-2, storage=storage)).coefficients["lambda"]
        for storage in ("float32", "float16")
    )
    assert not torch.equal(full, half)
    torch.testing.assert_close(half, full, rtol=0, atol=2e-3)


def test_partitions_update_matrices_and_embeddings_alone_as_the_map_says(backbone: Backbone) -> None:
    """The projection is included, which the tower has transposed and the task vectors have not."""
    task = make_task(backbone)
    base = backbone.tower.state_dict_open_clip()
    flat = {name: tensor for name, tensor in base.items() if tensor.ndim == 2}
    maps = random_groups({**flat, "proj": flat["proj"].T}, 3, task.dataset, task.seed)
    adapted = adapt(task, replace(TINY, partitions=3))
    lambda_NPK = adapted.coefficients["lambda"]
    assert lambda_NPK.shape == (4, len(flat), 3)
    assert adapted.trainable_parameters == 4 * len(flat) * 3
    assert moved_tensors(backbone, adapted) == set(flat) >= {"proj", "positional_embedding"}
    vectors = [task.sources.task_vector(source) for source in task.sources.names]
    for position, name in enumerate(flat):
        groups = maps[name].T if name == "proj" else maps[name]
        update = sum(lambda_NPK[row, position][groups] * vector[name] for row, vector in enumerate(vectors))
        torch.testing.assert_close(weights_of(adapted)[name], base[name] + update, rtol=1e-5, atol=1e-6)


def test_tensors_of_one_shape_share_a_map() -> None:
    shapes = {"a": (30, 40), "b": (30, 40), "c": (40, 30), "proj": (40, 30)}
    tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    maps = random_groups(tensors, 4, "dtd", 1)
    assert all(maps[name].shape == shape for name, shape in shapes.items())
    assert torch.equal(maps["a"], maps["b"])
    assert torch.equal(maps["a"], maps["proj"].T), "the projection's shape is open_clip's"
    assert not torch.equal(maps["a"], maps["c"].T)
    assert not torch.equal(maps["a"], random_groups(tensors, 4, "dtd", 2)["a"])
    counts = torch.bincount(maps["a"].flatten(), minlength=4)
    assert bool(((counts - 300).abs() < 5 * 15).all()), "each group has a quarter, within five standard deviations"


@pytest.mark.parametrize(
    ("rows", "batch_size", "batches", "copies"),
    [(10, 128, 10, 129), (10, 64, 10, 65), (752, 128, 10, 2), (1600, 128, 10, 1), (12, 32, 1, 1), (12, 32, 2, 6)],
)
def test_oversampling_is_the_official_one(rows: int, batch_size: int, batches: int, copies: int) -> None:
    """A support smaller than one batch is not repeated if one batch is enough."""
    assert oversampling(rows, batch_size, batches) == copies


def test_an_epoch_has_ten_batches_and_the_work_counts_them(backbone: Backbone) -> None:
    task, looks = with_looks(make_task(backbone))
    adapt(task, TINY)
    assert sum(len(rows) for _, rows in looks) == METHODS["atlas"].tower_passes(12, TINY).training == 2 * 12 * 7
    published, looks = with_looks(make_task(backbone, protocol=AS_PUBLISHED))
    adapt(published, TINY)
    assert sum(len(rows) for _, rows in looks) == 2 * 12


@pytest.mark.parametrize(("scale", "norm"), [(1.0, 1.0), (65536.0, 1 / 65536)])
def test_clipping_scaled_gradients_shortens_the_step(scale: float, norm: float) -> None:
    """The gradient is (3, 4, 0), and the step is that of SGD at rate 1."""
    weight = torch.zeros(3, requires_grad=True)
    weight.grad = torch.tensor([3.0, 4.0, 0.0])
    clip_gradient([weight], 1.0, scale)
    torch.optim.SGD([weight], lr=1.0).step()
    assert float(weight.detach().norm()) == pytest.approx(norm, rel=1e-5)
    torch.testing.assert_close(weight.detach() / norm, torch.tensor([-0.6, -0.8, 0.0]), rtol=1e-5, atol=0)


def test_one_batch_an_epoch_never_steps_as_published(backbone: Backbone) -> None:
    """Twelve images are a single batch. With two batches per step, the published loop makes no step."""
    settings = AtlasSettings(epochs=2, accumulate=2)
    broken, sound = (adapt(make_task(backbone, protocol=protocol), settings) for protocol in (AS_PUBLISHED, STRICT))
    assert not moved_tensors(backbone, broken)
    assert broken.coefficients["lambda"].count_nonzero() == 0
    assert sound.coefficients["lambda"].abs().max() > 0.1


def test_at_test_time_the_coefficients_move_unless_published(backbone: Backbone) -> None:
    settings = METHODS["atlas"].configure({"batch_size": 8}, "tta")
    assert (settings.epochs, settings.learning_rate, settings.weight_decay) == (1, 1e-2, 0.1)
    for protocol, moves in (
        (STRICT, True),
        (STRICT.with_switches(atlas_tta="as_published"), False),
        (PUBLISHED, False),
    ):
        adapted = adapt(make_task(backbone, protocol=protocol, unlabelled=True), settings)
        assert bool(moved_tensors(backbone, adapted)) is moves
        assert bool(adapted.coefficients["lambda"].any()) is moves
