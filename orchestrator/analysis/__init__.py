"""From results to verdicts: rows, the statistics that name the best methods, and the recommendation.

Start with ``verdict_series``, which turns rows into the verdicts that pages, the terminal, MLflow and ``verdict.json``
share. ``rows`` has one row per cell and test split. ``comparable`` selects the rows that are compared, and ``scores``
computes their metric. ``best_set`` makes a ``verdict`` over datasets, and ``one_dataset`` makes one on the test images
of a single dataset. Both use ``comparison``. While a grid is measured, ``race`` decides which methods need no more
cells, and ``raced_places`` lists the cells that a race still needs. ``recommendation`` names the cheapest of the best
methods by their ``costs``.
"""

from typing import Literal

SMALLEST_DIFFERENCE = 1.0
"""The smallest difference that matters, in points of the metric. Methods that differ by less are level."""
CONFIDENCE = 0.95
"""The confidence level of the intervals."""
POWER = 0.8
"""The probability with which the estimated number of further datasets or seeds settles a pair of methods: one of them
is significantly better, or they are level."""
LARGEST_COUNT = 1000
"""The largest number of further datasets or seeds that is estimated."""
CostKind = Literal["operations", "memory", "parameters"]
"""The kind of cost that the recommendation compares second, after the need for source models: operations to adapt,
memory, or trainable parameters."""
