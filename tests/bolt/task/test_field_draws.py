"""Draws of the field's codes, against lists that the official functions drew.

The expected positions were drawn by Dassl c61a1b5 (``generate_fewshot_dataset``) and by Tip-Adapter d0e2d6f, whose
function CLIP-LoRA, LP++ and GDA copied. Those of FGVC Aircraft were published by linzhiqiu/cross_modal_adaptation
ac9077e (``indices/``).
"""

import numpy as np
import pytest

from bolt.task.field_draws import draw_as_published
from bolt.task.support import TooFewImages, draw_support

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
        ("dassl", DASSL_8, DASSL_8_VAL),
        ("tip_adapter", TIP_8, None),
        ("clip_lora", LORA_8, LORA_8_VAL),
        ("lp_plus_plus", TIP_8, LP_8_VAL),
        ("gda", GDA_8, None),
    ],
)
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
