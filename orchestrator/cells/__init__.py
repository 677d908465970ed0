"""Cells: measuring one cell in one process, without Ray.

Start with ``trial.py``, which runs a cell and records the outcome. ``measure.py`` gathers the inputs (``inputs.py``),
makes the task (``task.py``), runs the method on the task, and scores the classifier on each test split (``splits.py``,
``evaluation.py``).
"""
