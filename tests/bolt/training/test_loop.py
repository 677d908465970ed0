"""The training loop: rates, batches, selection, resuming, divergence."""

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bolt.protocol import STRICT
from bolt.task.support import batch_order
from bolt.training.loop import NO_DEVIATIONS, Diverged, ReferenceDeviations, TrainingRecipe, fit, learning_rate
from bolt.training.optimisers import SGD, Adam, AdamW

ROWS = 10
INPUTS = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
SHORT = TrainingRecipe(epochs=4, batch_size=4, learning_rate=1e-2)


def order(epoch: int) -> Tensor:
    return batch_order(ROWS, dataset="d", seed=0, epoch=epoch)


def regression() -> tuple[Tensor, Callable[[int, Tensor], Tensor]]:
    weight = torch.zeros(3, requires_grad=True)
    return weight, lambda epoch, rows: (INPUTS[rows] @ weight - TARGETS[rows]).square().mean()


@pytest.mark.parametrize(
    ("base", "warmup", "total", "step", "expected"),
    [
        (1e-3, 0, 10, 0, 1e-3), (1e-3, 0, 10, 1, 9.755283e-4), (1e-3, 0, 10, 5, 5e-4), (1e-3, 0, 10, 9, 2.447174e-5),
        (1e-5, 500, 2000, 0, 2e-8), (1e-5, 500, 2000, 499, 1e-5), (1e-5, 500, 2000, 500, 1e-5),
        (1e-5, 500, 2000, 1250, 5e-6), (1e-5, 500, 100, 99, 2e-6),
    ],
)  # fmt: skip
def test_learning_rate(base: float, warmup: int, total: int, step: int, expected: float) -> None:
    assert learning_rate(base, step, total, warmup) == pytest.approx(expected, rel=1e-6)


CONSTANT = [1e-2 / 3, 2e-2 / 3] + 10 * [1e-2]
COSINE = [learning_rate(1e-2, step, 12, 0) for step in range(12)]


@pytest.mark.parametrize(
    ("changes", "deviations", "expected"),
    [
        ({}, NO_DEVIATIONS, COSINE),
        ({}, ReferenceDeviations(late_schedule=True), [1e-2, *COSINE[:-1]]),
        ({"warmup_fraction": 0.25}, NO_DEVIATIONS, [learning_rate(1e-2, step, 12, 3) for step in range(12)]),
        ({"warmup_fraction": 0.25, "schedule": "constant"}, NO_DEVIATIONS, pytest.approx(CONSTANT)),
        ({"warmup_steps": 500}, NO_DEVIATIONS, [1e-2 * (step + 1) / 500 for step in range(12)]),
    ],
    ids=["cosine", "published offset lags", "warm-up", "constant", "fixed warm-up wins"],
)
def test_rates_of_the_steps(
    changes: dict[str, Any], deviations: ReferenceDeviations, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    step = AdamW.step

    def record(self: torch.optim.AdamW, *arguments: Any, **more: Any) -> Any:
        seen.append(self.param_groups[0]["lr"])
        return step(self, *arguments, **more)

    monkeypatch.setattr(AdamW, "step", record)
    weight, loss = regression()
    recipe = replace(SHORT, **{"warmup_fraction": 0.0, **changes})
    fit([weight], loss, order, recipe, deviations=deviations)
    assert seen == expected
    assert len(seen) == recipe.steps(ROWS)


@pytest.mark.parametrize(
    ("plain", "usual", "settings"),
    [
        (AdamW, torch.optim.AdamW, {"fused": True, "weight_decay": 0.1}),
        (Adam, torch.optim.Adam, {"weight_decay": 0.1}),
        (SGD, torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_the_plain_optimisers_take_pytorchs_steps(plain: Any, usual: Any, settings: dict[str, Any]) -> None:
    found = []
    for kind in (plain, usual):
        weight, loss = regression()
        hooked: list[object] = []
        optimiser = kind([weight], lr=0.1, **settings)
        optimiser.register_step_pre_hook(lambda *step, hooked=hooked: hooked.append(step))
        for _ in range(4):
            optimiser.load_state_dict(optimiser.state_dict())
            optimiser.zero_grad()
            loss(0, torch.arange(ROWS)).backward()
            optimiser.step()
        assert weight.requires_grad
        assert len(hooked) == 4
        found.append(weight.detach())
    assert torch.equal(*found)


def test_every_row_once_an_epoch_with_the_partial_batch() -> None:
    seen: list[tuple[int, list[int]]] = []
    weight, loss = regression()

    def watched(epoch: int, rows: Tensor) -> Tensor:
        seen.append((epoch, rows.tolist()))
        return loss(epoch, rows)

    fit([weight], watched, order, SHORT)
    assert [len(rows) for _, rows in seen] == [4, 4, 2] * 4
    for epoch in range(4):
        visited = [row for when, rows in seen if when == epoch for row in rows]
        assert visited == order(epoch).tolist()


def test_the_curve_is_reported_and_weighs_batches_by_size() -> None:
    reported: list[tuple[int, Mapping[str, float]]] = []
    weight = torch.zeros(1, requires_grad=True)
    curve = fit(
        [weight],
        lambda epoch, rows: rows.float().mean() + 0 * weight.sum(),
        order,
        SHORT,
        report=lambda epoch, metrics: reported.append((epoch, metrics)),
    )
    assert reported == list(enumerate(curve))
    assert set(curve[0]) == {"train_loss", "learning_rate"}
    assert curve[0]["train_loss"] == pytest.approx((ROWS - 1) / 2)


def test_training_lowers_the_loss_and_repeats_bit_for_bit() -> None:
    results = []
    for _ in range(2):
        weight, loss = regression()
        curve = fit([weight], loss, order, replace(SHORT, epochs=30, learning_rate=0.1))
        results.append(weight.detach().clone())
    assert curve[-1]["train_loss"] < 0.9 * curve[0]["train_loss"]
    assert torch.equal(*results)


@pytest.mark.parametrize(("clip", "left"), [(0.0, [30.0, 40.0]), (1e-3, [0.6e-3, 0.8e-3]), (100.0, [30.0, 40.0])])
def test_gradients_are_clipped_by_their_global_norm(clip: float, left: list[float]) -> None:
    one, other = (torch.zeros(1, requires_grad=True) for _ in range(2))
    recipe = replace(SHORT, epochs=1, clip_norm=clip)
    fit([one, other], lambda epoch, rows: 30 * one.sum() + 40 * other.sum(), order, recipe)
    gradients = [float(tensor.grad) for tensor in (one, other) if tensor.grad is not None]
    assert gradients == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize(("selection", "expected"), [("last", 3), ("best_train_loss", 1)])
def test_the_epoch_of_lowest_training_loss_can_be_restored(selection: str, expected: int) -> None:
    """Epoch 1 has the lowest mean loss over images, and epoch 2 over batches, of which the last is partial."""
    extra = {0: (9.0, 9.0), 1: (1.0, 4.0), 2: (2.0, 0.5), 3: (9.0, 9.0)}  # for full and partial batches
    snapshots: list[Tensor] = []
    weight, loss = regression()
    fit(
        [weight],
        lambda epoch, rows: loss(epoch, rows) * 1e-3 + extra[epoch][len(rows) == 2],
        order,
        SHORT,
        STRICT.with_switches(epoch_selection=selection),
        lambda epoch, metrics: snapshots.append(weight.detach().clone()),
    )
    assert [torch.equal(weight, snapshot) for snapshot in snapshots] == [epoch == expected for epoch in range(4)]


@pytest.mark.parametrize("selection", ["last", "best_train_loss"])
@pytest.mark.parametrize("stop", [0, 2])
def test_a_resumed_training_is_the_uninterrupted_one(stop: int, selection: str) -> None:
    """The first epoch has the lowest loss, so the snapshot's best parameters are needed."""
    protocol = STRICT.with_switches(epoch_selection=selection)

    def start() -> tuple[Tensor, Callable[[int, Tensor], Tensor]]:
        weight, loss = regression()
        return weight, lambda epoch, rows: loss(epoch, rows) + 100.0 * epoch

    weight, loss = start()
    curve = fit([weight], loss, order, SHORT, protocol)

    class Interrupted(Exception):
        pass

    file = io.BytesIO()

    def checkpoint(epoch: int, state: Callable[[], dict[str, Any]]) -> None:
        if epoch == stop:
            torch.save(state(), file)
            raise Interrupted

    interrupted, loss = start()
    with pytest.raises(Interrupted):
        fit([interrupted], loss, order, SHORT, protocol, on_epoch_end=checkpoint)
    file.seek(0)
    resumed, loss = start()
    again = fit([resumed], loss, order, SHORT, protocol, resume=torch.load(file, weights_only=True))
    assert torch.equal(resumed, weight)
    assert again == curve


def test_a_loss_that_is_not_finite_stops_with_epoch_and_step() -> None:
    weight, loss = regression()

    def poisoned(epoch: int, rows: Tensor) -> Tensor:
        return loss(epoch, rows) * (float("nan") if epoch == 2 and order(2)[4] in rows else 1.0)

    with pytest.raises(Diverged, match="epoch 2, step 1 is nan"):
        fit([weight], poisoned, order, SHORT)


def test_a_parameter_that_is_not_finite_stops_even_after_the_last_loss() -> None:
    weight = torch.ones(1, requires_grad=True)
    recipe = TrainingRecipe(epochs=1, batch_size=ROWS)
    with pytest.raises(Diverged, match="a parameter is NaN or infinite after epoch 0"):
        fit([weight], lambda epoch, rows: (weight - 1).sqrt().sum(), order, recipe)


@pytest.mark.parametrize(
    ("field", "value"),
    [("epochs", 0), ("batch_size", 0), ("learning_rate", 0.0), ("clip_norm", -1.0), ("warmup_fraction", 1.5)],
)
def test_recipes_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        TrainingRecipe(**{field: value})  # type: ignore[arg-type]
