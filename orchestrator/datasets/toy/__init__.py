"""A drawn world: small tasks and a small CLIP, so that everything can run on a laptop without a download.

Listing the tasks is cheap; `draw` loads the drawing kit (torch, and the fonts inside matplotlib) when it is called.
"""

from __future__ import annotations

from orchestrator.datasets.toy.tasks import TASKS, VARIANTS, WORLD_VERSION, AerialTask, GlyphTask, ToyTask, draw

__all__ = ["TASKS", "VARIANTS", "WORLD_VERSION", "AerialTask", "GlyphTask", "ToyTask", "draw"]
