"""Artifacts: everything that is built once and read by many cells, such as decoded images, features and source models.

Start with ``spec.py``, which says what a kind of artifact is; the kinds are beside it. ``required.py`` says which
artifacts a cell reads, ``loaded.py`` keeps those that a process has read.
``docs/adding-an-artifact-kind.md`` adds a kind.
"""
