"""From results to verdicts: rows, the statistics that name the best methods, and the recommendation.

``rows`` has one row per cell and test split. ``verdict`` turns rows into the verdicts that pages, the terminal, MLflow
and ``verdict.json`` share; start there. ``best_set`` compares methods over datasets and returns a ``comparison``;
``one_dataset`` makes the same record from the test images of one dataset. ``race`` decides while a grid is measured
which methods need no more cells, and ``raced_places`` which cells those are. ``recommendation`` names the cheapest of
the best methods by their ``costs``. ``comparable`` says which rows take part, ``scores`` by which
metric they are compared.
"""

from typing import Literal

SMALLEST_DIFFERENCE = 1.0
"""The smallest difference that matters, in points of the metric. Methods that differ by less are level."""
CostKind = Literal["operations", "memory", "parameters"]
"""What the recommendation saves first: operations to adapt, memory, or trainable parameters."""
