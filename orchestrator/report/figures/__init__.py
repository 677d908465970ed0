"""Figures: each module draws one kind from a study. Start with ``curves.py``; ``drawing.py`` has the shared code."""
