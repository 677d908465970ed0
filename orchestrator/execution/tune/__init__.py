"""Run cells on Ray Tune, one trial per cell. Only this folder imports ``ray.tune``.

Tune assigns cells to workers, starts workers, and reports when one dies. It does not keep results: those are in the
store, and a run is resumed by planning the cells that have none. Start reading at ``driver.py``. This file imports
nothing: a worker would import the driver with it, which takes seconds.

What makes thousands of cells cheap, each measured:

- A worker process is reused for the next cell (``reuse_actors``): starting one takes seconds, reusing one milliseconds.
- A trial's configuration holds the number of a cell, not the cell, and a searcher gives out one trial at a time. Tune
  copies configurations: if they held a list of all cells, Tune would copy this list once per cell.
- A free slot goes to a cell that requests the same share of a GPU, so that its worker can be reused.
- Finished trials are removed: Tune would keep 26 kB of each and write them all to disk at its end.
- Tune's loggers and console output are off. Its snapshots go to a temporary folder that is removed.
"""
