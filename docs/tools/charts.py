"""Draw the charts of docs/performance.md from the numbers in docs/performance.json.

    python docs/tools/charts.py [FOLDER]     # by default docs/images

A bar is one measurement; where several runs were made, a line spans them. The mark is the goal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).resolve().parents[1]
MET, MISSED, NO_GOAL = "#3f6fb5", "#c2653b", "#9aa5b1"
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "performance", "font.family": "DejaVu Sans", "font.size": 9}


def worst(row: Mapping[str, Any], better: str) -> float:
    """The worst of a row's runs, which the bar shows."""
    return float(min(row["runs"]) if better == "more" else max(row["runs"]))


def colour(row: Mapping[str, Any], better: str) -> str:
    """Whether the worst run meets the goal."""
    if "goal" not in row:
        return NO_GOAL
    value = worst(row, better)
    return MET if (value >= row["goal"] if better == "more" else value <= row["goal"]) else MISSED


def draw(chart: Mapping[str, Any], folder: Path) -> Path:
    """Draw one chart as ``performance-NAME.svg``; returns its path."""
    rows, better = chart["rows"], chart["better"]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 0.95 + 0.32 * len(rows)), layout="constrained")
        longest = max(max(*row["runs"], row.get("goal", 0)) for row in rows)
        for at, row in enumerate(rows):
            value = worst(row, better)
            axes.barh(at, value, height=0.55, color=colour(row, better))
            if len(row["runs"]) > 1:
                axes.plot([min(row["runs"]), max(row["runs"])], [at, at], color="black", linewidth=1.2)
            if "goal" in row:
                axes.plot([row["goal"]] * 2, [at - 0.4, at + 0.4], color="black", linewidth=2)
            goal = f" (goal {row['goal']:g})" if "goal" in row else ""
            text = " to ".join(f"{run:g}" for run in row["runs"]) + goal
            axes.text(1.01, at, text, va="center", transform=axes.get_yaxis_transform())
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.03)
        axes.set_xlabel(f"{chart['unit']} ({better} is better)")
        figure.suptitle(chart["title"], x=0.01, ha="left", fontsize=10)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        path = folder / f"performance-{chart['name']}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
    return path


def draw_all(folder: Path) -> list[Path]:
    """Draw every chart of the data file."""
    charts = json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))
    return [draw(chart, folder) for chart in charts]


if __name__ == "__main__":
    for path in draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "images"):
        print(path)
