"""The benchmark of bfloat16: its products and its statistic."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import precision


def test_products_have_float32_sums_and_a_rounded_result() -> None:
    x, w = (torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16() for shape in ((4, 300), (300, 5)))
    with precision.Float32Sums():
        found = x @ w
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, (x.float() @ w.float()).bfloat16())
    torch.testing.assert_close(found, x @ w, atol=0.02, rtol=0.02)


def test_float32_is_left_alone() -> None:
    x = torch.randn(3, 4)
    with precision.Float32Sums():
        assert torch.equal(x @ x.T, x @ x.T)
        assert (x @ x.T).dtype == torch.float32


@pytest.mark.parametrize(("difference", "verdict"), [(0.1, "yes"), (0.3, "NO")])
def test_the_verdict_is_of_the_mean_over_targets(difference: float, verdict: str) -> None:
    changes = {("a", 1): difference, ("a", 2): difference + 0.4, ("b", 1): difference - 0.2}
    pairs = {
        f"{target} {seed} bolt k1": {"float32": 50.0, "bfloat16": 50.0 + change}
        for (target, seed), change in changes.items()
    }
    _, row, last = precision.summary(pairs, ["bolt", "lora"])
    assert row.split()[:2] == ["bolt", "3"]
    assert float(row.split()[4]) == pytest.approx(difference, abs=1e-3)
    assert float(row.split()[-1]) == pytest.approx(difference + 0.4)
    assert last.endswith(verdict)
    low, high = float(row.split()[5]), float(row.split()[7])
    assert (low + high) / 2 == pytest.approx(difference, abs=1e-3)
    assert high - low == pytest.approx(2 * 12.706 * 0.4 / math.sqrt(2) / math.sqrt(2), rel=1e-3)
