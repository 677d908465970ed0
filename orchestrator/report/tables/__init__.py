"""Tables: each module makes one kind from a grid's results.

Start with ``table.py``, the data structure, and ``accuracy.py``, the main tables. ``formats.py`` and ``latex.py`` print
a table.
"""
