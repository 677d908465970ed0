"""Artifacts: everything that is built once and read by many cells, such as decoded images, features and source models.

Start with ``spec.py``, which says what a kind of artifact is and caches those that a process has loaded. Each other
file is a kind; ``required.py`` says which artifacts a cell reads.
``docs/adding-an-artifact-kind.md`` adds a kind.
"""
