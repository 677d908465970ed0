"""The verdict at one place of a benchmark: the record behind pages, the terminal, MLflow and ``verdict.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.comparison import Comparison


@dataclass(frozen=True)
class Verdict:
    """A comparison with the place it belongs to.

    Attributes:
        domain: name of the domain; ``None`` for all domains together.
        dataset: name of the dataset if the comparison is about one, else ``None``.
        k: images per class; 0 on a track without k.
        recommended: the recommended method; ``None`` if no method was measured.
    """

    track: str
    protocol: str
    domain: str | None
    backbone: str
    k: int
    comparison: Comparison
    recommended: str | None
    dataset: str | None = None

    def record(self, display_names: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The verdict as JSON values, with the fields that docs/verdict.md describes."""
        comparison = self.comparison
        return {
            "track": self.track,
            "protocol": self.protocol,
            "domain": self.domain,
            "dataset": self.dataset,
            "backbone": self.backbone,
            "k": self.k,
            "scope": comparison.scope,
            "n": comparison.n,
            "images": comparison.images,
            "smallest_difference": comparison.smallest_difference,
            "outcome": comparison.outcome,
            "best_set": list(comparison.best_set),
            "more": comparison.more,
            "recommended": self.recommended,
            "statement": comparison.statement(display_names),
            "methods": [
                {
                    "method": score.method,
                    "mean": score.mean,
                    "difference": score.difference,
                    "interval": None if score.interval is None else list(score.interval),
                    "n": score.n,
                    "seeds": score.seeds,
                    "in_best_set": score.in_best_set,
                    "beaten_by": score.beaten_by,
                }
                for score in comparison.methods
            ],
            "pairs": [
                {
                    "first": pair.first,
                    "second": pair.second,
                    "difference": pair.difference,
                    "interval": None if pair.interval is None else list(pair.interval),
                    "n": pair.n,
                    "level": pair.level,
                    "more": pair.more,
                }
                for pair in comparison.pairs
            ],
        }
