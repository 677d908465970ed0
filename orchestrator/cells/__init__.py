"""Cells: measuring one cell in one process, without Ray.

Start with ``trial.py``, which runs a cell and records how it ended. ``inputs.py`` gathers what the cell reads,
``measure.py`` runs its method, ``evaluation.py`` scores the result.
"""
