"""Run cells on Ray Tune, one trial per cell. Only this folder imports ``ray.tune``.

Tune assigns cells to workers, starts workers, and reports when one dies. The results are in the store,
not in Tune: a run is resumed by planning the cells without a result. Start reading at ``driver.py``.

This file imports nothing. If it imported the driver, every worker would import the driver too, which takes seconds.

What makes thousands of cells cheap, by measurement:

- A worker process is reused for the next cell (``reuse_actors``): starting one takes seconds, reusing one milliseconds.
- A trial's configuration holds only the number of its cell, and a searcher makes one configuration at a time. With a
  list of all cells in the configuration instead, Tune would copy the whole list once per cell.
- When a cell ends, its slot goes to a cell that requests the same share of a GPU, so that the worker can be reused.
- Finished trials are removed: Tune would keep 26 kB of each and write them all to disk at its end.
- Tune's loggers and console output are off. Its snapshots go to a temporary folder that is removed.
"""
