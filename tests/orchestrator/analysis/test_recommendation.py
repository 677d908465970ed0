"""The recommendation: which method it names, and what its sentence says."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.coverage import losses
from orchestrator.analysis import CostKind
from orchestrator.analysis.best_set import best_set
from orchestrator.analysis.costs import Cost
from orchestrator.analysis.recommendation import recommend
from orchestrator.analysis.verdict import RULE, MethodScore, Pair, Verdict
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.core.cell import Place

COSTS = {
    "bolt": Cost(sources=True, operations=800, memory=100, parameters=1_000),
    "lora": Cost(sources=False, operations=4_000, memory=300, parameters=80_000),
    "atlas": Cost(sources=True, operations=8_000, memory=200, parameters=200),
    "zero_shot": Cost(sources=False, operations=0, memory=50, parameters=0),
}


def compared(behind: Mapping[str, float], *, level: bool = False, beaten: Sequence[str] = ()) -> Verdict:
    """Return the verdict at k = 4 on methods that are ``behind`` the first method by these points.

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
    return Verdict("datasets", methods, tuple(pairs), 8, k=4, costs=COSTS)


BOLT = compared({"bolt": 0.0, "lora": 3.0}, beaten=["lora"])
LEVEL = compared({"atlas": 0.0, "bolt": 0.2, "lora": 3.0}, level=True, beaten=["lora"])
UNDECIDED = compared({"lora": 0.0, "bolt": 0.2, "atlas": 0.4})


def sentence(*verdicts: tuple[int, Verdict]) -> str:
    return recommend([replace(verdict, k=k) for k, verdict in verdicts])


def test_the_cheapest_of_level_methods_is_recommended_with_what_it_saves_and_what_it_may_lose() -> None:
    verdicts = [replace(BOLT, k=k) for k in (1, 2, 4)] + [replace(LEVEL, k=16)]
    assert [verdict.recommended for verdict in verdicts] == ["bolt"] * 4
    assert recommend(verdicts, {"bolt": "BOLT", "atlas": "aTLAS"}) == (
        "use BOLT up to k = 4; use BOLT at k = 16: it takes 10 times fewer operations to adapt, and aTLAS is as good "
        "(at 95 %, it is at most 0.5 points behind the best)"
    )


def test_undecided_methods_are_not_called_level() -> None:
    assert "it needs no source models, and bolt and atlas may be as good" in sentence((16, UNDECIDED))
    assert "atlas is as good" in sentence((16, LEVEL))


def test_the_loss_is_the_largest_end_of_the_intervals_between_the_others_and_the_recommended_method() -> None:
    pairs = (
        Pair("bolt", "lora", 0.6, (-0.4, 1.6), 8, False, 6),
        Pair("bolt", "atlas", 0.9, (-3.0, 4.8), 8, False, 6),
        Pair("lora", "atlas", 0.3, (-2.3, 2.9), 8, False, 6),
    )
    verdict = replace(compared({"bolt": 0.0, "lora": 0.6, "atlas": 0.9}), pairs=pairs)
    assert (verdict.recommended, verdict.loss) == ("lora", 2.3)
    assert "at most 2.3 points" in recommend([verdict])
    unknown = replace(pairs[0], interval=None)
    without = replace(verdict, pairs=(unknown, *pairs[1:]))
    assert without.loss is None
    assert "points" not in recommend([without])
    assert BOLT.loss is None


def test_the_bound_on_the_loss_holds_in_95_percent_of_draws() -> None:
    """Six methods half a point apart, the worst of them the cheapest."""
    draws = 200
    _, _, held = losses(np.random.default_rng(0), draws, [2.5, 2.0, 1.5, 1.0, 0.5, 0.0], datasets=8)
    assert held >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / draws)


def test_a_cheap_method_far_behind_is_not_recommended_because_data_are_few() -> None:
    few = compared({"bolt": 0.0, "zero_shot": 20.0})
    assert few.recommended == "bolt"
    assert sentence((1, few)).startswith("use bolt at k = 1, but zero_shot may be as good")
    assert compared({"bolt": 0.0, "zero_shot": 1.0}).recommended == "zero_shot"


@pytest.mark.parametrize(
    ("first", "second", "saves", "winner", "words"),
    [
        (Cost(True, 1, 1, 1), Cost(False, 9, 9, 9), "operations", "b", "needs no source models"),
        (Cost(False, 10, 9, 9), Cost(False, 20, 1, 1), "operations", "a", "takes 2.0 times fewer operations"),
        (Cost(False, 0, 9, 9), Cost(False, 20, 1, 1), "operations", "a", "takes no passes through the tower"),
        (Cost(False, 10, 9, 9), Cost(False, 20, 1, 1), "memory", "b", "needs 9.0 times less memory"),
        (Cost(False, 10, 9, 9), Cost(False, 20, 1, 1), "parameters", "b", "has 9.0 times fewer trainable parameters"),
        (Cost(False, 10, 9, 0), Cost(False, 20, 1, 1), "parameters", "a", "has no trainable parameters"),
        (Cost(False, 12, 9, 9), Cost(False, 10, 1, 1), "operations", "b", "needs 9.0 times less memory"),
        (Cost(False, 10, 12, 7), Cost(False, 11, 10, 1), "operations", "b", "has 7.0 times fewer trainable parameters"),
        (Cost(False, 10, 12, 7, 9.0), Cost(False, 11, 10, 8, 1.0), "operations", "a", "costs no more"),
        (Cost(), Cost(False, 10, 4, 2), "operations", "b", "costs no more"),
    ],
)
def test_source_models_count_first_small_differences_never(
    first: Cost, second: Cost, saves: CostKind, winner: str, words: str
) -> None:
    level = compared({"a": 0.0, "b": 0.1}, level=True)
    verdict = replace(level, costs={"a": first, "b": second}, saves=saves)
    assert verdict.recommended == winner
    assert recommend([verdict]).startswith(f"use {winner} at k = 4: it {words}")


def test_a_method_that_leads_on_most_datasets_is_recommended_although_it_lacks_one() -> None:
    lora, bolt = MethodScore("lora", 70.0, 5, 2), MethodScore("bolt", 74.0, 4, 2, difference=3.0)
    assert Verdict("datasets", (lora, bolt), (), 5, costs=COSTS).recommended == "bolt"
    assert Verdict("datasets", (lora, replace(bolt, n=2)), (), 5, costs=COSTS).recommended == "lora"
    without_seeds, far = replace(lora, n=1, seeds=0), replace(bolt, difference=-3.0)
    assert Verdict("dataset", (without_seeds, far), (), 3, costs=COSTS).close == ["lora"]


def test_a_method_whose_distance_to_the_first_is_unknown_is_not_recommended() -> None:
    scores = {"bolt": {(f"d{i}", 0): 63.0 for i in range(8)}, "zero_shot": {(f"d{i}", 1): 60.0 for i in range(8)}}
    verdict = replace(best_set(scores), costs=COSTS)
    assert verdict.recommended == "bolt"
    assert sentence((4, verdict)) == "use bolt at k = 4, but zero_shot may be as good"
    assert verdict.statement() == (
        "undecided: bolt, zero_shot; too few datasets shared under the same seeds to say how many more would settle it"
    )


def test_a_long_list_of_methods_names_three_and_counts_the_others() -> None:
    few = compared({"bolt": 0.0, **{f"m{i}": 20.0 for i in range(6)}})
    assert ", but m0, m1, m2 and 3 more may be as good" in sentence((1, few))


def test_ks_are_named_in_words() -> None:
    lora = compared({"lora": 0.0, "bolt": 3.0}, beaten=["bolt"])
    assert sentence((1, BOLT), (2, BOLT)) == "use bolt at every k"
    assert sentence((0, BOLT)) == "use bolt"
    assert sentence((1, BOLT), (8, lora), (16, lora)) == "use bolt at k = 1; use lora from k = 8 on"
    assert sentence((1, lora), (2, BOLT), (4, BOLT), (8, lora)) == "use lora at k = 1 and 8; use bolt at k = 2 and 4"


def test_one_method_or_none_is_said() -> None:
    assert sentence((4, compared({"bolt": 0.0}))) == "use bolt at k = 4: no other method was measured"
    assert compared({}).recommended is None
    assert "nothing to recommend" in sentence((4, compared({})))


def test_a_verdict_becomes_json() -> None:
    answer = VerdictSeries(Place("fewshot", "strict", "ViT-B/32", "aerial"), (replace(LEVEL, k=16),))
    (record,) = json.loads(json.dumps(answer.records({"bolt": "BOLT"})))
    assert record["recommended"] == "bolt"
    assert (record["track"], record["domain"], record["dataset"], record["k"]) == ("fewshot", "aerial", None, 16)
    assert record["best_set"] == ["atlas", "bolt"]
    assert (record["loss"], record["cost"], record["more_seeds"], record["rule"]) == (0.5, "operations", None, RULE)
    assert record["statement"] == "level: atlas, BOLT"
    assert [method["in_best_set"] for method in record["methods"]] == [True, True, False]
    assert (record["methods"][1]["operations"], record["methods"][1]["needs_sources"]) == (800, True)
    assert record["methods"][1]["difference"] == pytest.approx(-0.2)
    pair = record["pairs"][0]
    assert (pair["first"], pair["second"], pair["interval"], pair["level"]) == ("atlas", "bolt", [-0.5, 0.5], True)
