"""Cells: measuring one cell in one process, without Ray.

Start with ``trial.py``, which runs a cell and records how it ended. ``measure.py`` runs its method on the task that
``task.py`` makes, and ``evaluation.py`` scores the classifier.
"""
