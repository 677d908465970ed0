"""Methods that merge models without training."""

from collections.abc import Callable, Hashable, Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import PROJECTION, matrix_names
from bolt.methods import METHODS
from bolt.methods.common.merging import with_update
from bolt.methods.common.scale_selection import mutual_information
from bolt.spectral.sources import Value
from tests.helpers.adapting import adapt, logits_of, run
from tests.helpers.quick_settings import quick_settings
from tests.helpers.towers import RandomSources, make_task, weights_of

MERGING = ("task_arithmetic", "tsv_merge", "ties", "iso_c", "consensus", "knots")
MLP = "transformer.resblocks.0.mlp.c_fc.weight"


def test_a_moved_tower_shares_what_does_not_move(backbone: Backbone) -> None:
    base = backbone.tower.state_dict_open_clip()
    before = {name: tensor.clone() for name, tensor in base.items()}
    update = {name: torch.randn(base[name].shape) for name in (PROJECTION, "ln_pre.bias", MLP)}
    tower = with_update(backbone.tower, update, 0.5)
    for name, tensor in tower.state_dict_open_clip().items():
        if name in update:
            torch.testing.assert_close(tensor, before[name] + 0.5 * update[name])
        elif name != PROJECTION:
            assert tensor.data_ptr() == base[name].data_ptr()
    assert not any(parameter.requires_grad for parameter in tower.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.tower.state_dict_open_clip().items())


def summed_tsv(vectors: Tensor) -> Tensor:
    """Return TSV-M's update of a matrix, by plain decompositions."""
    u, s, vh = torch.linalg.svd(vectors, full_matrices=False)
    k = min(vectors.shape[1:]) // len(vectors)
    factors = []
    for stack in (torch.cat([*u[:, :, :k]], dim=1), torch.cat([*vh[:, :k].mT], dim=1)):
        p, _, qh = torch.linalg.svd(stack, full_matrices=False)
        factors.append(p @ qh)
    return factors[0] * s[:, :k].flatten() @ factors[1].mT


def isotropic_sum(vectors: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(vectors.sum(dim=0), full_matrices=False)
    return s.mean() * u @ vh


FORMULAS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "task_arithmetic": (lambda vectors: vectors.sum(dim=0), lambda vectors: vectors.sum(dim=0)),
    "tsv_merge": (summed_tsv, lambda vectors: vectors.mean(dim=0)),
    "iso_c": (isotropic_sum, lambda vectors: vectors.mean(dim=0)),
}
"""Method -> the update of a matrix and of another tensor, from the task vectors in float64."""


@pytest.mark.parametrize("name", FORMULAS)
def test_the_merged_tower_is_that_of_the_formula(name: str, backbone: Backbone) -> None:
    sources, base = RandomSources(backbone), backbone.tower.state_dict_open_clip()
    after = weights_of(adapt(name, make_task(backbone, sources=sources), alphas=(0.7,)))
    for key, before in base.items():
        update = FORMULAS[name][key not in matrix_names(base)]
        vectors = torch.stack([vector[key] for vector in sources.vectors.values()]).double()
        torch.testing.assert_close(after[key], before + 0.7 * update(vectors).float(), rtol=1e-4, atol=1e-5)


def test_the_scale_is_the_most_accurate_on_the_support(backbone: Backbone) -> None:
    name, task = MERGING[0], make_task(backbone, sources=RandomSources(backbone, scale=0.05))
    alphas = (3.0, 0.1, 1.0)
    correct = {}
    for alpha in sorted(alphas):
        logits = logits_of(task, adapt(name, task, alphas=(alpha,)))
        correct[alpha] = int((logits.argmax(dim=-1) == task.support.labels_N).sum())
    assert len(set(correct.values())) > 1, "the example must tell the scales apart"
    chosen = adapt(name, task, alphas=alphas)
    assert chosen.details == {"alpha": max(correct, key=lambda alpha: correct[alpha]), "alpha_by": "support"}
    assert chosen.trainable_parameters == 0


@pytest.mark.parametrize("name", MERGING)
def test_zero_task_vectors_leave_zero_shot_at_the_smallest_scale(name: str, backbone: Backbone) -> None:
    task = make_task(backbone, sources=RandomSources(backbone, scale=0.0))
    adapted, logits = run(name, task)
    _, zero_shot = run("zero_shot", task)
    torch.testing.assert_close(logits, zero_shot)
    assert adapted.details["alpha"] == min(quick_settings(name)["alphas"])


@pytest.mark.parametrize("name", MERGING)
def test_one_zero_source_is_no_trouble(name: str, backbone: Backbone) -> None:
    sources = RandomSources(backbone, count=3)
    sources.vectors["source_1"] = {key: 0 * tensor for key, tensor in sources.vectors["source_1"].items()}
    _, logits = run(name, make_task(backbone, sources=sources))
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(("name", "tensor"), [*product(MERGING, (MLP, "ln_post.weight")), ("bolt", MLP)])
def test_a_task_vector_with_nan_is_refused(name: str, tensor: str, backbone: Backbone) -> None:
    sources = RandomSources(backbone)
    sources.vectors["source_1"][tensor].view(-1)[0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        run(name, make_task(backbone, sources=sources))


def test_a_mean_of_ones_own_that_is_not_finite_is_refused(backbone: Backbone) -> None:
    """The vote of ``consensus`` read NaN as zero."""

    class Broken(RandomSources):
        def mean_task_vector(self, matrix: str) -> Tensor:
            return torch.full_like(super().mean_task_vector(matrix), torch.nan)

    for name in ("consensus", "task_arithmetic"):
        with pytest.raises(ValueError, match="NaN or infinite"):
            run(name, make_task(backbone, sources=Broken(backbone)))


def test_what_is_asked_of_the_sources_is_announced() -> None:
    """At ViT-B's width TSV-M reads 48 directions of each of 16 sources, and task arithmetic reads none."""
    for name, expected in {"tsv_merge": 48, "task_arithmetic": 0, "bolt": 12, "bolt_pooled": 12}.items():
        method = METHODS[name]
        assert method.source_directions(method.settings_class(), 768, 16) == expected
    assert METHODS["tsv_merge"].source_directions(METHODS["tsv_merge"].settings_class(), 16, 40) == 1


@pytest.mark.parametrize("name", ["tsv_merge", "bolt"])
def test_sources_are_asked_for_no_other_number_of_directions(name: str, backbone: Backbone) -> None:
    """An engine stores the announced number of directions for every matrix."""
    asked: set[int] = set()

    class Watched(RandomSources):
        def directions(self, matrix: str, top_k: int) -> Any:
            asked.add(top_k)
            return super().directions(matrix, top_k)

    run(name, make_task(backbone, sources=Watched(backbone)))
    method = METHODS[name]
    assert asked == {
        method.source_directions(method.configure(quick_settings(method.name)), backbone.tower.shape.width, 4)
    }


class Keeping(RandomSources):
    """Sources that cache what methods compute from them, and count how often they are read."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.made: dict[Hashable, Any] = {}
        self.reads = 0

    def cached(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self.made:
            self.made[key] = make()
        value: Value = self.made[key]
        return value

    def mean_task_vector(self, matrix: str) -> Tensor:
        self.reads += 1
        return super().mean_task_vector(matrix)

    def task_vector(self, source: str) -> Mapping[str, Tensor]:
        self.reads += 1
        return super().task_vector(source)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["task_arithmetic", "tsv_merge", "ties", "iso_c", "atlas", "adamerging"])
def test_sources_are_read_for_the_first_task_only(name: str, backbone: Backbone) -> None:
    """A second task with other images reads no source; other settings read the sources again."""
    sources, at_test_time = Keeping(backbone), name == "adamerging"
    tasks = [make_task(backbone, sources=sources, seed=seed, unlabelled=at_test_time) for seed in (1, 2)]
    run(name, tasks[0])
    reads = sources.reads
    second = run(name, tasks[1])[1]
    assert sources.reads == reads > 0
    assert torch.equal(second, run(name, make_task(backbone, seed=2, unlabelled=at_test_time))[1])
    if name == "ties":
        adapt(name, tasks[1], alphas=(1.0,), keep_percent=50.0)
        assert sources.reads == 2 * reads


@pytest.mark.slow
def test_groups_of_atlas_sort_stacks_of_their_own(backbone: Backbone) -> None:
    sources, quick = Keeping(backbone), {"epochs": 2, "batch_size": 8}
    fresh, grouped = (
        logits_of(task, adapt("atlas", task, partitions=3, **quick))
        for task in (make_task(backbone), make_task(backbone, sources=sources))
    )
    whole = run("atlas", make_task(backbone, sources=sources))[1]
    assert torch.equal(fresh, grouped)
    again = make_task(backbone, sources=sources)
    assert torch.equal(fresh, logits_of(again, adapt("atlas", again, partitions=3, **quick)))
    assert torch.equal(whole, run("atlas", make_task(backbone))[1])


def test_information_of_known_predictions() -> None:
    """Certain, balanced predictions give log C. Equal predictions for all images give zero."""
    batches = [torch.eye(4)[:2], torch.eye(4)[2:]]
    assert mutual_information(iter(batches)) == pytest.approx(torch.tensor(4.0).log().item())
    assert mutual_information(iter([torch.eye(4)[:1].expand(5, 4)])) == 0.0
    assert mutual_information(iter([torch.full((3, 4), 0.25)])) == pytest.approx(0.0)
