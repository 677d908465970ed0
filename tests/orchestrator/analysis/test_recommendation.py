"""The recommendation: which method it names, and what its sentence says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from orchestrator.analysis.comparison import Comparison, MethodScore, Pair
from orchestrator.analysis.recommendation import Cost, Verdict, recommend
from orchestrator.analysis.verdict import VerdictSeries

COSTS = {
    "bolt": Cost(trainable_parameters=1_000, seconds=5.0, memory=100),
    "lora": Cost(trainable_parameters=80_000, seconds=9.0, memory=300),
    "atlas": Cost(trainable_parameters=200_000, seconds=7.0, memory=200),
    "zero_shot": Cost(trainable_parameters=0, seconds=0.0, memory=0),
}


def comparison(behind: Mapping[str, float], *, level: bool = False, beaten: Sequence[str] = ()) -> Comparison:
    """Return a comparison of methods so many points behind the first one.

    All pairs of the best set are level or undecided.
    """
    methods = tuple(
        MethodScore(
            method,
            mean=80 - points,
            n=8,
            seeds=2,
            difference=-points if points else None,
            beaten_by=next(iter(behind)) if method in beaten else None,
        )
        for method, points in behind.items()
    )
    best = [score.method for score in methods if score.in_best_set]
    pairs = [
        Pair(a, b, 0.0, (-0.5, 0.5), 8, level, None if level else 6) for i, a in enumerate(best) for b in best[i + 1 :]
    ]
    return Comparison("datasets", methods, tuple(pairs), 8)


BOLT = comparison({"bolt": 0.0, "lora": 3.0}, beaten=["lora"])
LEVEL = comparison({"lora": 0.0, "bolt": 0.2, "atlas": 0.4}, level=True)
UNDECIDED = comparison({"lora": 0.0, "bolt": 0.2, "atlas": 0.4})


def sentence(*comparisons: tuple[int, Comparison], costs: Mapping[str, Cost] = COSTS) -> str:
    return recommend([Verdict(k, result, costs) for k, result in comparisons])


def test_the_cheapest_of_level_methods_is_recommended_with_what_it_saves() -> None:
    verdicts = [Verdict(k, BOLT, COSTS) for k in (1, 2, 4)] + [Verdict(16, LEVEL, COSTS)]
    assert [verdict.recommended for verdict in verdicts] == ["bolt"] * 4
    assert recommend(verdicts, {"bolt": "BOLT", "lora": "LoRA", "atlas": "aTLAS"}) == (
        "use BOLT up to k = 4; use BOLT at k = 16: it has 80 times fewer trainable parameters, "
        "and LoRA and aTLAS are as good"
    )


def test_undecided_methods_are_not_called_level() -> None:
    assert "lora and atlas may be as good" in sentence((16, UNDECIDED))
    assert "lora and atlas are as good" in sentence((16, LEVEL))


def test_a_cheap_method_far_behind_is_not_recommended_because_data_are_few() -> None:
    few = comparison({"bolt": 0.0, "zero_shot": 20.0})
    assert Verdict(1, few, COSTS).recommended == "bolt"
    assert sentence((1, few)) == "use bolt at k = 1, but zero_shot may be as good"
    near = comparison({"bolt": 0.0, "zero_shot": 1.0})
    assert Verdict(1, near, COSTS).recommended == "zero_shot"


@pytest.mark.parametrize(
    ("first", "second", "winner", "words"),
    [
        (Cost(10, 1.0, 1), Cost(15, 1.0, 1), "a", "has 1.5 times fewer trainable parameters"),
        (Cost(0, 9.0, 9), Cost(15, 1.0, 1), "a", "has no trainable parameters"),
        (Cost(10, 6.0, 1), Cost(10, 2.0, 9), "b", "takes 3.0 times less time"),
        (Cost(10, 2.0, 4), Cost(10, 2.0, 8), "a", "needs 2.0 times less memory"),
        (Cost(10, 2.0, 4), Cost(10, 2.0, 4), "a", "costs no more"),
        (Cost(), Cost(10, 2.0, 4), "b", "costs no more"),
        (Cost(10, None, 4), Cost(10, None, 2), "b", "needs 2.0 times less memory"),
    ],
)
def test_numbers_decide_before_seconds_and_seconds_before_memory(
    first: Cost, second: Cost, winner: str, words: str
) -> None:
    pair = comparison({"a": 0.0, "b": 0.1}, level=True)
    verdict = Verdict(4, pair, {"a": first, "b": second})
    assert verdict.recommended == winner
    assert recommend([verdict]).startswith(f"use {winner} at k = 4: it {words}, and ")


def test_a_long_list_of_methods_names_three_and_counts_the_others() -> None:
    few = comparison({"bolt": 0.0, **{f"m{i}": 20.0 for i in range(6)}})
    assert ", but m0, m1, m2 and 3 more may be as good" in sentence((1, few))


def test_ks_are_named_in_words() -> None:
    lora = comparison({"lora": 0.0, "bolt": 3.0}, beaten=["bolt"])
    assert sentence((1, BOLT), (2, BOLT)) == "use bolt at every k"
    assert sentence((0, BOLT)) == "use bolt"
    assert sentence((1, BOLT), (8, lora), (16, lora)) == "use bolt at k = 1; use lora from k = 8 on"
    assert sentence((1, lora), (2, BOLT), (4, BOLT), (8, lora)) == "use lora at k = 1 and 8; use bolt at k = 2 and 4"


def test_one_method_or_none_is_said() -> None:
    assert sentence((4, comparison({"bolt": 0.0}))) == "use bolt at k = 4: no other method was measured"
    assert Verdict(4, comparison({}), {}).recommended is None
    assert "nothing to recommend" in sentence((4, comparison({})))


def test_a_verdict_becomes_json_with_its_comparison() -> None:
    answer = VerdictSeries("fewshot", "strict", "aerial", "ViT-B/32", (Verdict(16, LEVEL, COSTS),))
    (record,) = json.loads(json.dumps(answer.records({"bolt": "BOLT"})))
    assert record["recommended"] == "bolt"
    assert (record["track"], record["domain"], record["dataset"], record["k"]) == ("fewshot", "aerial", None, 16)
    assert record["best_set"] == ["lora", "bolt", "atlas"]
    assert record["statement"] == "level: lora, BOLT, atlas"
    assert [method["in_best_set"] for method in record["methods"]] == [True] * 3
    assert record["methods"][1]["difference"] == pytest.approx(-0.2)
    pair = record["pairs"][0]
    assert (pair["first"], pair["second"], pair["interval"], pair["level"]) == ("lora", "bolt", [-0.5, 0.5], True)
