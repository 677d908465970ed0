"""Figures: each module draws one kind from the results of a grid.

Start with ``curves.py``; ``drawing.py`` has the shared code.
"""
