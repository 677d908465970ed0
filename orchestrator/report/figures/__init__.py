"""Figures: each module draws one kind from a grid. Start with ``curves.py``; ``drawing.py`` has the shared code."""
