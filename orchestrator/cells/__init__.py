"""Cells: measuring one cell in one process, without Ray.

Start with ``trial.py``, which runs a cell and records how it ended. ``measure.py`` gathers what the cell reads
(``inputs.py``), runs its method on the task that ``task.py`` makes of it, and scores the classifier on each test split
(``splits.py``, ``evaluation.py``).
"""
