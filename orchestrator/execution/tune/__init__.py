"""Cells on Ray Tune: one trial per cell. The only room that imports ``ray.tune``.

Tune decides which worker takes which cell, starts workers, and starts a cell again when its worker dies. It is not
asked to remember anything: results are in the store, and resuming means planning the cells without one.

What makes thousands of cells cheap, each measured:

- a worker process is kept from cell to cell (``reuse_actors``): starting one costs seconds, reusing one milliseconds;
- trials carry a number, not a cell, and are handed out one by one by a searcher: Tune copies configurations around
  and would copy a list of cells once per cell;
- a place that becomes free goes to a cell that asks for the same share of a GPU, so that its worker can be kept;
- trials that have ended are forgotten: Tune would keep 26 kB of each and write them all down at its end;
- Tune's loggers and console output are off, and its snapshots go to a temporary folder that is removed.
"""

from orchestrator.execution.tune.driver import run_cells

__all__ = ["run_cells"]
