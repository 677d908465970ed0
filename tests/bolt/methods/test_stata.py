"""StatA and EM-Dirichlet against the official codes."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.em_dirichlet import EmDirichletSettings, cluster
from bolt.methods.em_dirichlet import adapt as adapt_dirichlet
from bolt.methods.stata import StatASettings, adapt, start, transduce
from bolt.task.task import Unlabelled
from tests.bolt.methods.third_vectors import close, exact, vector
from tests.helpers.frozen_tasks import Problem, clip_like


def test_start_rounds_and_probabilities_are_the_official_ones() -> None:
    unit, text = vector("world/test"), vector("world/text")
    close(start(unit, text, 100.0).variances_CD[0], "stata/init_variance")
    first = transduce(unit, text, 100.0, StatASettings(rounds=1))
    close(first.z_nC, "stata/z_first")
    second, last = (transduce(unit, text, 100.0, StatASettings(rounds=rounds)) for rounds in (2, 10))
    close(last.z_nC, "stata/z_last")
    for state, at in ((second, "first"), (last, "last")):  # the last round updates z alone
        close(state.beta_C, f"stata/beta_{at}")
        close(state.means_CD, f"stata/mu_{at}")
        close(state.variances_CD, f"stata/cov_{at}")
    close(transduce(unit, text, 100.0, StatASettings(soft_counts=True)).z_nC, "stata/z_last_soft_beta")


@pytest.mark.parametrize(("form", "name"), [("hard", "hard_em_dirichlet"), ("soft", "em_dirichlet")])
def test_dirichlet_clusters_are_the_official_ones(form: str, name: str) -> None:
    q = (30 * vector("world/test").double() @ vector("world/text").double().T).softmax(dim=-1)
    settings = EmDirichletSettings(assignment=form)  # type: ignore[arg-type]
    u, alpha = cluster(q, settings)
    exact(alpha, f"em_dirichlet/{name}_alpha_last")
    exact(u, f"em_dirichlet/{name}_u_last")
    exact(cluster(q, replace(settings, balance=0.0))[0], f"em_dirichlet/{name}_u_last_lambda0")
    exact(cluster(q, replace(settings, rounds=1))[1], f"em_dirichlet/{name}_alpha_first")
    soft, _ = cluster(q, EmDirichletSettings(assignment="soft", rounds=1))
    exact(soft, f"em_dirichlet/{name}_u_first_soft")


@pytest.fixture
def problem(backbone: Backbone) -> Problem:
    """Return a problem without a support, whose test images the task has without labels."""
    made = clip_like(backbone, shots=1)

    def none(*arguments: object) -> Tensor:
        raise AssertionError("only features are read")

    unlabelled = Unlabelled(len(made.test_ND), none, lambda: made.test_ND, none)
    empty = replace(made.task.support, labels_N=torch.empty(0, dtype=torch.long))
    return replace(made, task=replace(made.task, support=empty, unlabelled=unlabelled))


def test_adapted_images_are_looked_up_and_others_are_scored_by_the_model(problem: Problem) -> None:
    settings = StatASettings()
    adapted, clusters = adapt(problem.task, settings), adapt_dirichlet(problem.task, EmDirichletSettings())
    assert problem.accuracy(adapted) > problem.zero_shot()
    unit = F.normalize(problem.test_ND, dim=-1)
    u, _ = cluster((30 * unit.double() @ problem.task.head_CD.double().T).softmax(dim=-1), EmDirichletSettings())
    assert torch.equal(clusters.classify(problem.test_ND).argmax(dim=-1), u.argmax(dim=-1))
    solved = transduce(unit, problem.task.head_CD, 100.0, settings)
    assert torch.equal(adapted.classify(problem.test_ND).argmax(dim=-1), solved.z_nC.argmax(dim=-1))
    others = F.normalize(problem.test_ND + 0.5 * problem.test_ND.roll(1, dims=1), dim=-1)
    same = (adapted.classify(others).argmax(dim=-1) == problem.test_labels_N).float().mean()
    assert same > 0.3


def test_a_class_without_any_probability_stays_at_its_text(problem: Problem) -> None:
    far = replace(problem.task, head_CD=torch.cat([problem.task.head_CD, -problem.task.head_CD[:1]]))
    solved = transduce(F.normalize(problem.test_ND, dim=-1), far.head_CD, 100.0, StatASettings())
    assert torch.isfinite(solved.means_CD).all()
    torch.testing.assert_close(solved.means_CD[-1], far.head_CD[-1].double(), rtol=0, atol=1e-6)
    assert torch.isfinite(adapt_dirichlet(far, EmDirichletSettings()).classify(problem.test_ND)).all()
