"""No training step makes the host wait for a GPU, or uses an operation without a deterministic kernel."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.protocol import Precision
from bolt.training import loop, meta
from bolt.training.finetune import finetune_source
from bolt.training.loop import TrainingRecipe
from bolt.training.meta import MetaRecipe, MetaTask, Variant, meta_learn
from tests.helpers.quick_settings import quick_settings
from tests.helpers.synchronisation import Waits
from tests.helpers.towers import make_task

WITHOUT_STEPS = frozenset({
    "ape", "bolt_pooled", "consensus", "dmn", "em_dirichlet", "gda", "iso_c", "knots", "lines", "logistic_probe",
    "lp_plus_plus", "mta", "proker", "stata", "task_arithmetic", "tda", "ties", "tip_adapter", "tpt", "trans_clip",
    "tsv_merge", "zero", "zero_shot",
})  # fmt: skip
"""Methods that take no step of ``training_step``: closed forms, searches and loops of their own."""

TRAINED = [
    (name, track)
    for name, method in sorted(METHODS.items())
    for track in ("fewshot", "tta", "tta_stream", "tta_image")
    if track in method.tracks and name not in {*WITHOUT_STEPS, "auto"}  # ``auto`` runs the other methods
]


class Steps:
    """Watches the steps of a training: the forward and the backward pass of every batch.

    Attributes:
        count: how many there were.
        waits: what made the host wait in one of them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.waits = 0, Waits()

        @contextmanager
        def step(precision: Precision | None, device: torch.device) -> Iterator[None]:
            self.count += 1
            self.waits.in_step = True
            yield
            self.waits.in_step = False

        def to_device(tensor: Tensor, device: torch.device) -> Tensor:
            return tensor if self.waits.holds(tensor) else self.waits.copied(tensor)

        for module in (loop, meta):
            monkeypatch.setattr(module, "training_step", step)
        for name, module in list(sys.modules.items()):
            if name.startswith("bolt.") and hasattr(module, "to_device"):
                monkeypatch.setattr(module, "to_device", to_device)

    def of(self, run: Callable[[], object]) -> set[str]:
        """Return the operations of the steps of ``run`` that made the host wait."""
        with self.waits:
            run()
        return self.waits.found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "track"), TRAINED)
def test_no_step_of_a_method_waits(name: str, track: str, backbone: Backbone, steps: Steps) -> None:
    task = make_task(backbone, unlabelled=track.startswith("tta"))
    method = METHODS[name]
    assert not steps.of(lambda: method.adapt(task, method.configure(quick_settings(method.name), track)))
    assert steps.count


def test_no_step_of_a_source_waits(backbone: Backbone, steps: Steps) -> None:
    pixels = torch.randint(0, 256, (4, 3, backbone.image_size, backbone.image_size), dtype=torch.uint8)
    labels_N = torch.tensor([0, 1, 0, 1])
    recipe = TrainingRecipe(epochs=1, batch_size=2)

    def train() -> None:
        head_CD = torch.eye(2, backbone.embed_dim)
        finetune_source(
            backbone, head_CD, labels_N, lambda view, rows: pixels[rows], lambda epoch: torch.arange(4), recipe
        )

    assert not steps.of(train)
    assert steps.count == 2


@pytest.mark.parametrize("variant", ["maml", "first_order", "reptile"])
def test_no_episode_waits(variant: Variant, backbone: Backbone, steps: Steps) -> None:
    pixels = torch.randint(0, 256, (4, 3, backbone.image_size, backbone.image_size), dtype=torch.uint8)
    head_CD, labels_N = torch.eye(2, backbone.embed_dim), torch.tensor([0, 1, 0, 1])
    task = MetaTask("made-up", head_CD, labels_N, lambda view, rows: pixels[rows])
    recipe = MetaRecipe(variant, steps=2, tasks_per_step=1, support=2, query=2, outer_rate=0.1)
    assert not steps.of(lambda: meta_learn(backbone, [task], recipe, seed=1))
    assert steps.count == 2


@pytest.mark.parametrize("wrong", ["item", "rows of the host"])
def test_a_step_that_waits_is_found(wrong: str, steps: Steps) -> None:
    weight = torch.ones(3, requires_grad=True)

    def loss(epoch: int, rows: Tensor) -> Tensor:
        return (weight * weight.sum().item()).sum() if wrong == "item" else weight[rows].sum()

    assert steps.of(lambda: loop.fit([weight], loss, lambda epoch: torch.arange(3), TrainingRecipe(epochs=1)))
