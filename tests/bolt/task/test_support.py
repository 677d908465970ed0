"""Draws of supports: nested draws, their seeds, and the draws of the field's codes; random numbers of threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bolt.seeds import isolated_torch_rng
from bolt.task.support import TooFewImages, batch_order, draw_as_published, draw_support

LABELS = np.tile(np.arange(5), 12)
SUPPORT = [10, 16, 37, 3, 19, 15, 11, 22, 33, 49, 35, 31, 32, 28, 24, 20, 51, 2, 18, 44]
ORDER = [16, 11, 7, 10, 18, 19, 12, 4, 5, 14, 8, 15, 3, 6, 9, 1, 2, 0, 17, 13]


@given(
    labels=st.lists(st.integers(0, 4), min_size=30, max_size=80),
    shots=st.integers(1, 6),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=50, deadline=None)
def test_fewer_shots_are_a_prefix_of_more(labels: list[int], shots: int, seed: int) -> None:
    few, more = (
        draw_support(labels, count, dataset="d", seed=seed, short_classes="take_all") for count in (shots, shots + 3)
    )
    assert few.tolist() == more[: len(few)].tolist()
    assert len(set(more.tolist())) == len(more)
    drawn, there = np.bincount(np.array(labels)[few], minlength=5), np.bincount(labels, minlength=5)
    assert drawn.tolist() == np.minimum(there, shots).tolist()


def test_every_class_first_then_every_class_second() -> None:
    support = draw_support(LABELS, 3, dataset="d", seed=0)
    assert LABELS[support].tolist() == [0, 1, 2, 3, 4] * 3


def test_a_class_does_not_depend_on_the_others() -> None:
    with_others = draw_support(LABELS, 3, dataset="d", seed=0)
    alone = np.where(LABELS == 2, 2, 7)
    without = draw_support(alone, 3, dataset="d", seed=0)
    assert with_others[LABELS[with_others] == 2].tolist() == without[alone[without] == 2].tolist()


@pytest.mark.parametrize("other", [{"dataset": "e", "seed": 0}, {"dataset": "d", "seed": 1}])
def test_draws_differ_between_datasets_and_seeds(other: dict[str, object]) -> None:
    one = draw_support(LABELS, 4, dataset="d", seed=0)
    assert one.tolist() != draw_support(LABELS, 4, **other).tolist()  # type: ignore[arg-type]


def test_draws_are_these_in_every_process_whatever_the_global_seed() -> None:
    assert draw_support(LABELS, 4, dataset="digits", seed=3).tolist() == SUPPORT
    assert batch_order(20, dataset="digits", seed=3, epoch=7).tolist() == ORDER


def test_a_short_class_is_refused_by_name() -> None:
    labels = [0, 0, 0, 1, 1]
    with pytest.raises(TooFewImages, match="class 1 of flowers has 2 training images, fewer than 3 shots"):
        draw_support(labels, 3, dataset="flowers", seed=0)
    taken = draw_support(labels, 3, dataset="flowers", seed=0, short_classes="take_all")
    assert np.array(labels)[taken].tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("short_classes", ["refuse", "take_all"])
def test_a_class_without_any_image_is_always_refused(short_classes: str) -> None:
    with pytest.raises(TooFewImages, match="class 1 of d has 0"):
        draw_support([0, 2], 1, dataset="d", seed=0, class_count=3, short_classes=short_classes)  # type: ignore[arg-type]


def test_no_shots_are_no_support() -> None:
    with pytest.raises(ValueError, match="not 0"):
        draw_support(LABELS, 0, dataset="d", seed=0)


def test_batch_orders_are_permutations_keyed_by_epoch() -> None:
    orders = [batch_order(50, dataset="d", seed=0, epoch=epoch) for epoch in range(3)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(50))
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_an_imbalanced_draw_has_the_frequencies_of_the_pool_and_k_images_a_class_in_all() -> None:
    labels = np.repeat(np.arange(4), [700, 200, 90, 10])
    drawn = draw_support(labels, 50, dataset="d", seed=0, draw="imbalanced")
    counts = np.bincount(labels[drawn], minlength=4)
    assert (len(drawn), len(set(drawn.tolist()))) == (200, 200)
    assert counts == pytest.approx([140, 40, 18, 2], abs=15)
    fewer = draw_support(labels, 3, dataset="d", seed=0, draw="imbalanced")
    assert fewer.tolist() == drawn[:12].tolist()
    assert fewer.tolist() != draw_support(labels, 3, dataset="d", seed=1, draw="imbalanced").tolist()


def test_an_imbalanced_draw_is_refused_if_the_whole_pool_is_too_small() -> None:
    with pytest.raises(TooFewImages, match="60 training images, fewer than 65"):
        draw_support(LABELS, 13, dataset="d", seed=0, draw="imbalanced")
    drawn = draw_support(LABELS, 13, dataset="d", seed=0, draw="imbalanced", short_classes="take_all")
    assert sorted(drawn.tolist()) == list(range(60))


def test_a_fresh_draw_is_the_authors_also_where_a_class_has_exactly_k_images() -> None:
    """The authors seed numpy's generator once, and call ``choice`` for each class with at least k images, in order."""
    labels = [0] * 6 + [1] * 4 + [2] * 9 + [3] * 3 + [4] * 9
    generator = np.random.RandomState(1)
    expected: set[int] = set()
    for label in range(5):
        members = np.flatnonzero(np.array(labels) == label)
        expected |= set((generator.choice(members, 4, replace=False) if len(members) >= 4 else members).tolist())
    drawn = draw_support(labels, 4, dataset="d", seed=1, short_classes="take_all", draw="fresh")
    assert set(drawn.tolist()) == expected


TRAIN = np.repeat([3, 0, 4, 1, 2], [9, 12, 8, 7, 11])
VAL = np.repeat([3, 0, 4, 1, 2], [5, 4, 4, 3, 6])
"""Labels in the order of a split file: classes first appear in the order 3, 0, 4, 1, 2."""
# fmt: off
DASSL_8 = [2, 1, 8, 0, 3, 4, 7, 6, 12, 10, 16, 9, 15, 20, 13, 17, 28, 23, 26, 22, 21, 25, 24, 27, 29, 30, 31, 32, 33,
           34, 35, 36, 44, 46, 42, 41, 37, 39, 45]
DASSL_8_VAL = [4, 1, 3, 2, 6, 8, 5, 7, 12, 10, 9, 11, 13, 14, 15, 20, 16, 17, 18]
TIP_8 = [2, 1, 8, 0, 3, 4, 7, 6, 12, 10, 16, 9, 15, 20, 13, 17, 28, 23, 26, 22, 21, 25, 24, 27, 29, 32, 35, 31, 30, 31,
         29, 30, 43, 46, 44, 39, 38, 37, 41, 45]
LORA_8 = [3, 1, 2, 0, 5, 4, 6, 8, 15, 19, 12, 20, 9, 13, 10, 18, 28, 25, 22, 23, 26, 27, 21, 24, 35, 35, 31, 35, 35, 29,
          33, 34, 40, 37, 41, 42, 46, 44, 45, 38]
LORA_8_VAL = [1, 0, 4, 3, 8, 6, 7, 5, 10, 9, 12, 11, 15, 14, 14, 15, 21, 19, 18, 20]
LP_8_VAL = [4, 4, 2, 4, 4, 0, 3, 3, 6, 7, 8, 8, 7, 8, 7, 8, 9, 10, 12, 10, 12, 10, 12, 10, 15, 14, 14, 14, 15, 15, 15,
            13, 19, 16, 16, 21, 18, 20, 18, 17]
GDA_8 = [8, 3, 6, 7, 5, 1, 4, 0, 19, 12, 16, 13, 9, 20, 17, 18, 23, 26, 27, 28, 21, 25, 22, 24, 32, 35, 30, 30, 35, 32,
         35, 31, 36, 43, 39, 42, 44, 41, 37, 38]
# fmt: on


@pytest.mark.parametrize(
    ("code", "train", "val"),
    [
        ("dassl", DASSL_8, DASSL_8_VAL), ("tip_adapter", TIP_8, None), ("clip_lora", LORA_8, LORA_8_VAL),
        ("lp_plus_plus", TIP_8, LP_8_VAL), ("gda", GDA_8, None),
    ],
)  # fmt: skip
def test_the_draws_are_those_of_the_official_functions(code: str, train: list[int], val: list[int] | None) -> None:
    drawn = draw_as_published({"train": TRAIN, "val": VAL}, 8, seed=1, code=code)
    assert drawn["train"].tolist() == train
    assert val is None or drawn["val"].tolist() == val


def test_the_published_list_of_fgvc_aircraft_is_drawn_from_its_class_sizes() -> None:
    train = np.repeat(np.arange(100), [(34, 33, 33)[label % 3] for label in range(100)])
    val = np.repeat(np.arange(100), [(33, 34, 33)[label % 3] for label in range(100)])
    drawn = draw_as_published({"train": train, "val": val}, 4, seed=2, code="dassl")
    assert drawn["train"][:5].tolist() == [3, 5, 23, 10, 53]
    assert drawn["val"][:5].tolist() == [31, 28, 18, 29, 41]
    assert np.bincount(train[drawn["train"]]).tolist() == [4] * 100


def test_a_support_of_the_first_classes_is_cut_out_of_the_draw_over_all_classes() -> None:
    whole = draw_support(TRAIN, 4, dataset="d", seed=1, draw="dassl")
    base = draw_support(TRAIN, 4, dataset="d", seed=1, draw="dassl", class_count=3)
    assert base.tolist() == [index for index in whole.tolist() if TRAIN[index] < 3]
    alone = draw_as_published({"train": TRAIN[TRAIN < 3], "val": []}, 4, seed=1, code="dassl")["train"]
    assert base.tolist() != np.flatnonzero(TRAIN < 3)[alone].tolist()


def test_small_classes_and_numbers_of_shots_outside_a_stream_are_refused() -> None:
    with pytest.raises(TooFewImages, match="class 1 of d has 7 training images, fewer than 8 shots"):
        draw_support(TRAIN, 8, dataset="d", seed=1, draw="dassl")
    assert len(draw_support(TRAIN, 8, dataset="d", seed=1, draw="dassl", short_classes="take_all")) == 39
    with pytest.raises(ValueError, match="not 3"):
        draw_as_published({"train": TRAIN, "val": VAL}, 3, seed=1, code="gda")


def test_threads_draw_one_after_the_other() -> None:
    """Two threads that adapted a LoRA at once reseeded each other, and got other bits."""
    inside, drawn = threading.Event(), threading.Event()

    def first() -> Tensor:
        with isolated_torch_rng("first"):
            inside.wait(0.3)
            found = torch.rand(3)
        drawn.set()
        return found

    def second() -> Tensor:
        with isolated_torch_rng("second"):
            inside.set()
            drawn.wait(0.3)
            return torch.rand(3)

    inside.set()
    expected = first(), second()
    inside.clear()
    drawn.clear()
    with ThreadPoolExecutor(2) as pool:
        found = pool.submit(first), pool.submit(second)
        assert all(torch.equal(one.result(), other) for one, other in zip(found, expected, strict=True))
