"""Trainings on all folds at once give the same results as one training after the other."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bolt.clip.backbone import Backbone
from bolt.methods import linear_probe, lp_plus_plus
from bolt.methods.common.cross_validation import fold_stacks, stratified_folds, with_images
from bolt.methods.linear_probe import LinearProbeSettings
from bolt.methods.lp_plus_plus import LpPlusPlusSettings
from bolt.protocol import STRICT
from bolt.task.task import Adapted, Task
from tests.helpers.frozen_tasks import clip_like

STEPS = (0.001, 0.03, 0.3)


def one_by_one(task: Task, folds: int, adapt: Callable[[Task, Any], Adapted], settings: Any) -> int:
    """Count the held-out images that are classified correctly if every fold is trained by itself."""
    fold_N = stratified_folds(task.support.labels_N, folds)
    correct = 0
    for fold in range(folds):
        kept, held_out = (torch.nonzero(part).flatten() for part in (fold_N != fold, fold_N == fold))
        adapted = adapt(with_images(task, kept), settings)
        predicted = adapted.classify(task.support.features(0)[held_out]).argmax(dim=-1)
        correct += int((predicted == task.support.labels_N[held_out]).sum())
    return correct


def test_copies_are_in_one_fold_and_the_classes_stay_balanced() -> None:
    labels_N = torch.arange(4).repeat(20)
    copies = [[0, 4, 8], [1, 2], [5, 9], [3, 7]]
    fold_N = stratified_folds(labels_N, 4, copies)
    assert all(len(set(fold_N[group].tolist())) == 1 for group in copies)
    counts = torch.stack([(fold_N[labels_N == label]).bincount(minlength=4) for label in range(4)])
    assert int(counts.min()) >= 4
    assert int(counts.max()) <= 7
    assert torch.equal(stratified_folds(labels_N, 3, []), stratified_folds(labels_N, 3))


@pytest.mark.parametrize(("folds", "sizes"), [(4, [4]), (3, [1, 2]), (2, [1, 1])])
def test_the_folds_of_one_size_make_a_stack(folds: int, sizes: list[int], backbone: Backbone) -> None:
    """Three folds get two, one and one of a class's four images; two folds get three and two of five images."""
    task = clip_like(backbone, shots=5 if folds == 2 else 4).task
    stacks = list(fold_stacks(task, folds, 1))
    assert [len(stack.kept_FM) for stack in stacks] == sizes
    held_out = torch.cat([stack.held_out_FH.flatten() for stack in stacks])
    assert sorted(held_out.tolist()) == list(range(len(task.support)))
    labels_N, unit_ND = task.support.labels_N, F.normalize(task.support.features(0), dim=-1)
    for stack in stacks:
        assert stack.labels_FH.equal(labels_N[stack.held_out_FH])
        assert stack.queries_FHD.equal(unit_ND[stack.held_out_FH])
        for kept, rows, order in zip(stack.kept_FM, stack.held_out_FH, stack.order(3), strict=True):
            assert sorted([*kept.tolist(), *rows.tolist()]) == list(range(len(labels_N)))
            assert kept[with_images(task, kept).support.order(3)].equal(order)


def test_large_folds_come_alone(backbone: Backbone) -> None:
    task = clip_like(backbone, shots=4).task
    assert [len(stack.kept_FM) for stack in fold_stacks(task, 4, math.inf)] == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs_kept", "changes"),
    [
        ("last", {}), ("best_train_loss", {"clip_norm": 0.05}), ("last", {"accumulate": 2, "clip_norm": 0.05}),
        ("last", {"weight_decay": 1.0, "folds": 3}),
    ],
    ids=["default", "clipped", "accumulated", "unequal folds"],
)  # fmt: skip
def test_all_rates_of_the_linear_probe_at_once(epochs_kept: Any, changes: dict[str, Any], backbone: Backbone) -> None:
    task = clip_like(backbone, shots=4, protocol=STRICT.with_switches(epoch_selection=epochs_kept)).task
    settings = replace(LinearProbeSettings(epochs=3, batch_size=8), **changes)
    rates = [step / (task.backbone.logit_scale * task.head_CD.shape[1] ** 0.5) for step in STEPS]
    fixed = [replace(settings, search="fixed", learning_rate=rate) for rate in rates]
    expected = [one_by_one(task, settings.folds, linear_probe.adapt, each) for each in fixed]
    assert len(set(expected)) > 1, "the example must tell the rates apart"
    assert linear_probe.held_out_correct(task, settings, rates) == expected
    chosen = linear_probe.adapt(task, replace(settings, logit_steps=STEPS)).details["learning_rate"]
    assert expected[rates.index(chosen)] == max(expected)


@pytest.mark.parametrize("folds", [3, 4])
def test_all_folds_of_lp_plus_plus_at_once(folds: int, backbone: Backbone) -> None:
    task = clip_like(backbone, shots=4).task
    settings, counts = LpPlusPlusSettings(views=2, folds=folds), (1, 5, 40)
    fixed = [replace(settings, search="fixed", steps=count) for count in counts]
    expected = [one_by_one(task, folds, lp_plus_plus.adapt, each) for each in fixed]
    assert len(set(expected)) > 1, "the example must tell the numbers apart"
    assert lp_plus_plus.held_out_correct(task, settings, counts) == expected
    chosen = lp_plus_plus.adapt(task, replace(settings, step_counts=counts)).details["steps"]
    assert expected[counts.index(chosen)] == max(expected)


class CountedOperations(TorchDispatchMode):
    """Counts the operations that PyTorch dispatches, which determine the time of small trainings."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapt", "settings"), [(linear_probe.adapt, LinearProbeSettings()), (lp_plus_plus.adapt, LpPlusPlusSettings())]
)
def test_a_choice_takes_at_most_five_trainings(
    adapt: Callable[[Task, Any], Adapted], settings: Any, backbone: Backbone
) -> None:
    """There are sixteen trainings in the linear probe's choice, and LP++ trains for up to 480 steps instead of 300."""
    task = clip_like(backbone, shots=4).task
    counts = []
    for search in ("fixed", "support"):
        with CountedOperations() as operations:
            adapt(task, replace(settings, search=search))
        counts.append(operations.count)
    assert counts[1] <= 5 * counts[0]
