"""``plan`` with unusual options prints the plan, or ends with exit code 2 and a message."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.__main__ import main
from tests.fuzz.cases import cases, near

GRID = """
title: Mini
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [glyph-digits, glyph-inks]
    shots: [1, 4]
    seeds: [1]
    methods: [zero_shot, tip_adapter, {linear_probe: {epochs: 2}}]
"""
WORDS = (
    "demo", "dmeo", "mini.yaml", "", " ", "-", "--", "0", "1", "-1", "3", "1e3", "9" * 30, "nan", "é", "a\nb",
    "\udcff", "../x", "/dev/null", "/proc/self/mem", "memory://x", "x" * 4000, "nosuch://x",
    "://", "~", "k=1", "method=zero_shot", "method=", "=", "shots=[1]", "shots=[[", "tip_adapter.alpha=x",
    "datasets=[glyph-digits]", "200GB", "1.5TiB", "0GB", "GB", "1e400", "-5GB", "9" * 400 + "TB", "1..2KB", "٣GB",
)  # fmt: skip
OPTIONS = (
    "--only", "--set", "--limit", "--store", "--disk-budget", "--data-root", "--catalog",
    "--retry-failed", "--gpu-memory", "--gpu",
)  # fmt: skip
words = st.sampled_from(WORDS) | st.sampled_from(WORDS).flatmap(near) | st.text(max_size=6)
options = st.lists(st.tuples(st.sampled_from(OPTIONS), words), max_size=3)


@cases(30)
@given(grid=st.sampled_from(("mini.yaml",) * 4 + WORDS), given_=options)
@example(grid="mini.yaml", given_=[("--disk-budget", "9" * 400)])
@example(grid="mini.yaml", given_=[("--limit", "9" * 5000)])
@example(grid="mini.yaml", given_=[("--store", "x" * 4000)])
@example(grid="mini.yaml", given_=[("--catalog", "x" * 4000)])
@example(grid="mini.yaml", given_=[("--data-root", "x" * 4000)])
@example(grid="x" * 4000, given_=[])
@example(grid="x" * 4000 + ".yaml", given_=[])
def test_plan_succeeds_or_ends_with_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    grid: str,
    given_: list[tuple[str, str]],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mini.yaml").write_text(GRID)
    line = ["plan", *(word for pair in given_ for word in (pair if pair[0] != "--retry-failed" else pair[:1])), grid]
    monkeypatch.setattr(sys, "argv", ["orchestrator", *line])
    try:
        main()
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    printed = capfd.readouterr()
    assert code in (0, 2), printed.err
    assert "Traceback" not in printed.err
    assert (code == 0) == ("cells:" in printed.out)
    assert code == 0 or (printed.err.strip() and len(printed.err) < 2500), printed.err
