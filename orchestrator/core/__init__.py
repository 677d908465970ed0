"""The plain data that every part of the engine shares: cells, source recipes, run settings and events.

Start with ``cell.py``: a cell is the identity of one measurement. ``recipes.py`` identifies source models,
``settings.py`` has the paths and the device of a run, and ``events.py`` reports what happens during a run.
"""
