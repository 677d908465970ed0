"""The verdict: the winner and its lead, and no claim that a test does not support."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.report.analysis.verdict import headline, verdicts_of
from tests.helpers.small_results import grid, study, write


def test_the_verdict_names_the_winner_its_lead_and_the_test() -> None:
    (panel,) = study(grid({"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0})).panels
    verdict = verdicts_of(panel)[1]
    assert (verdict.k, verdict.best, verdict.support) == (4, ("BOLT",), "supported")
    assert verdict.lead.startswith("5.00 points ahead of Linear probe")
    assert "8 wins, 0 ties and 0 losses" in verdict.lead
    assert "p = 0.0078, 0.023 after Holm's correction for 3 pairs" in verdict.reason
    assert headline(verdicts_of(panel)).startswith("BOLT has the highest mean accuracy in 2 of 2")


def test_a_single_seed_claims_nothing(tmp_path: Path) -> None:
    results = grid({"bolt": 80.0, "linear_probe": 55.0, "zero_shot": 0.0}, seeds=(0,))
    (panel,) = study(results).panels
    assert {v.support for v in verdicts_of(panel)} == {"untested"}
    page = write(tmp_path, results).page.read_text(encoding="utf-8")
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)
    assert 'class="badge supported"' not in text
    assert "is significant" not in text
    assert ">significant<" not in text
    assert "One seed" in text
    assert "±" not in re.sub(r"<figcaption>.*?</figcaption>", "", text, flags=re.DOTALL)


def test_a_grid_too_small_for_its_pairs_says_so() -> None:
    names = {f"m{i}": 60.0 - i for i in range(6)}
    (panel,) = study(grid(names)).panels
    verdict = verdicts_of(panel)[0]
    assert verdict.support == "too_small"
    assert "too small to settle" in verdict.reason
    assert "too small for a test" in headline(verdicts_of(panel))


def test_level_methods_share_the_win() -> None:
    (panel,) = study(grid({"bolt": 60.0, "linear_probe": 60.0})).panels
    verdict = verdicts_of(panel)[0]
    assert verdict.best == ("BOLT", "Linear probe")
    assert verdict.lead.startswith("Level with")
    assert verdict.support != "supported"
