"""The engine: plans grids of cells, runs them in this process or on Ray, stores results, and writes reports.

Start with :mod:`orchestrator.cli.session`, which runs a grid from its plan to its report. The science is in ``bolt``.
``results``, ``predictions`` and ``verdict`` give the numbers of a store to Python code (docs/results.md). These three
functions are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.sharing.frames import predictions, results, verdict

__version__ = "0.1.0"
__all__ = ["predictions", "results", "verdict"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.sharing import frames

    return getattr(frames, name)
