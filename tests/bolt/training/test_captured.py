"""Captured training steps: the same results as launched steps. Recorded operations stand for CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.common import composition
from bolt.methods.common.composition import Composition
from bolt.task.task import Adapted
from bolt.training import adaptation
from bolt.training.captured import WARM_UPS, CapturedGradient, captured_gradient
from bolt.training.loop import NO_QUIRKS, Curve, ReferenceQuirks, TrainingRecipe, fit
from bolt.training.trainable import Losses, Trainable
from tests.bolt.training.test_steps import TRAINED
from tests.helpers.recorded_operations import RecordedOperations
from tests.helpers.towers import make_task

CAPTURED = {
    (name, track)
    for track, names in {
        "fewshot": "atlas bitfit bolt dora full_finetune layer_norm lora lora_xs meta_init svf two_stage vera",
        "tta": "atlas bolt layer_norm",
    }.items()
    for name in names.split()
}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> RecordedOperations:
    """Captures steps on the CPU, those with dropout too, and composes weights as on a GPU."""
    found = RecordedOperations()
    monkeypatch.setattr(
        adaptation, "captured_gradient", lambda losses, trainable, device: CapturedGradient(losses, trainable, found)
    )
    monkeypatch.setattr(composition, "compares_values", lambda device: False)
    return found


def adapt(
    name: str, track: str, backbone: Backbone, cuda_graphs: bool, settings: Mapping[str, Any] | None = None
) -> tuple[Adapted, Curve]:
    """Adapt to twelve images, a full and a smaller batch, for so many epochs that steps of both are repeated."""
    method = METHODS[name]
    curve: Curve = []

    def after_epoch(epoch: int, make: Callable[[], Adapted]) -> None:
        make()

    epochs = {"epochs": WARM_UPS + 3} if "epochs" in method.test_settings else {}
    task = make_task(backbone, unlabelled=track == "tta", report=lambda epoch, row: curve.append(dict(row)))
    task = replace(task, cuda_graphs=cuda_graphs, after_epoch=after_epoch)
    return method.adapt(task, method.configure({**method.test_settings, **epochs, **(settings or {})}, track)), curve


def tensors(adapted: Adapted) -> list[Tensor]:
    tower = adapted.tower.state_dict_open_clip() if adapted.tower else {}
    return [*tower.values(), *adapted.coefficients.values()]


def assert_same(one: tuple[Adapted, Curve], other: tuple[Adapted, Curve]) -> None:
    assert one[1] == other[1]
    assert all(torch.equal(a, b) for a, b in zip(tensors(one[0]), tensors(other[0]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "track"), [case for case in TRAINED if METHODS[case[0]].changes_tower])
def test_captured_steps_give_the_same_bits(
    name: str, track: str, backbone: Backbone, recorder: RecordedOperations
) -> None:
    launched = adapt(name, track, backbone, cuda_graphs=False)
    assert not recorder.recorded
    assert_same(adapt(name, track, backbone, cuda_graphs=True), launched)
    assert (recorder.repeated > 1) == ((name, track) in CAPTURED)


def test_adapters_of_the_text_tower_are_captured(backbone: Backbone, recorder: RecordedOperations) -> None:
    both = [adapt("lora", "fewshot", backbone, cuda_graphs, {"towers": "both"}) for cuda_graphs in (False, True)]
    assert_same(*both)
    assert recorder.repeated > 1


def test_a_captured_step_repeats_its_dropout(backbone: Backbone, recorder: RecordedOperations) -> None:
    """So steps with dropout are not captured, and a host decision in any other step would be found here."""
    curves = [adapt("lora", "fewshot", backbone, graphs, {"dropout": 0.5})[1] for graphs in (False, True)]
    assert recorder.repeated
    assert curves[0] != curves[1]


@pytest.mark.parametrize(("device", "capturable"), [("cpu", True), ("cuda", False)])
def test_steps_are_launched_without_a_gpu_and_where_they_cannot_be_captured(device: str, capturable: bool) -> None:
    trainable, losses = regression()
    trainable = replace(trainable, capturable=capturable)
    assert captured_gradient(losses, trainable, torch.device(device)) is None


def test_asking_for_captured_steps_changes_nothing_on_a_cpu(backbone: Backbone) -> None:
    assert_same(*(adapt("bolt", "fewshot", backbone, cuda_graphs) for cuda_graphs in (False, True)))


# ----------------------------------------------------------------------------------------------------- one regression

ROWS = 20
INPUTS = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randn(ROWS, generator=torch.Generator().manual_seed(1))


def regression() -> tuple[Trainable, Losses]:
    weight, unused = torch.zeros(3, requires_grad=True), torch.ones(1, requires_grad=True)
    losses = Losses(
        inputs=lambda epoch, rows: (INPUTS[rows], TARGETS[rows]),
        of_inputs=lambda inputs, targets: (inputs @ weight - targets).square().mean(),
        order=lambda epoch: torch.arange(ROWS).roll(epoch),
    )
    return Trainable(lambda images: images, [weight, unused], lambda: None, capturable=True), losses  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "quirks", "kinds"),
    [
        (10, 1, NO_QUIRKS, 1),
        (6, 1, NO_QUIRKS, 2),  # 6, 6, 6, 2 rows
        (6, 2, NO_QUIRKS, 2),
        (6, 3, NO_QUIRKS, 2),  # three batches make a step, and the smaller one makes one of its own
        (8, 2, NO_QUIRKS, 2),  # a third of 8, 8, 4 rows counts wholly
        (6, 3, ReferenceQuirks(step_on_full_batches=True), 2),  # the gradient of the last batch is carried on
    ],
)
def test_a_graph_for_every_shape_of_batch_adds_up_gradients_as_launched_steps_do(
    batch_size: int, accumulate: int, quirks: ReferenceQuirks, kinds: int
) -> None:
    recipe = TrainingRecipe(epochs=6, batch_size=batch_size, learning_rate=0.1, accumulate=accumulate)
    recorder, results = RecordedOperations(), []
    for captured in (False, True):
        trainable, losses = regression()
        gradient: Callable[[int, Tensor, float], Tensor] | None = None
        if captured:
            gradient = CapturedGradient(losses, trainable, recorder)
        curve = fit(trainable.parameters, losses.of_rows, losses.order, recipe, quirks=quirks, gradient=gradient)
        results.append((curve, trainable.parameters[0].detach()))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    batches = 6 * -(-ROWS // batch_size)
    assert recorder.recorded == kinds
    assert recorder.repeated == batches - WARM_UPS * kinds


def test_composed_weights_are_computed_anew_in_a_step_captured_after_they_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are read after every epoch, here of as many steps as warm up, to make the classifier of that epoch."""
    monkeypatch.setattr(composition, "compares_values", lambda device: False)
    stack_NM = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    recipe = TrainingRecipe(epochs=4, batch_size=ROWS // WARM_UPS, learning_rate=0.1)

    def train(captured: bool) -> Curve:
        composed = Composition({"weight": torch.zeros(3)}, {"weight": stack_NM})

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            return (inputs @ composed.tensors()["weight"] - targets).square().mean()

        def read(epoch: int, state: object) -> None:
            composed.tensors(anew=True)

        trainable, losses = regression()
        trainable = replace(trainable, parameters=[composed.coefficients], invalidate=composed.invalidate)
        losses = replace(losses, of_inputs=loss)
        gradient = CapturedGradient(losses, trainable, RecordedOperations()) if captured else None
        return fit(trainable.parameters, losses.of_rows, losses.order, recipe, on_epoch_end=read, gradient=gradient)

    assert train(captured=True) == train(captured=False)
