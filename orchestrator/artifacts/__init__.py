"""Artifacts: everything that is built once and read by many cells, such as decoded images, features and source models.

A cell is one measurement: a method on a dataset, with a backbone, a number of shots and a seed. Start with ``spec.py``,
which defines a kind of artifact and the cache of loaded artifacts. ``required.py`` lists the artifacts that a cell
reads. Most other files define one kind each. ``docs/adding-an-artifact-kind.md`` says how to add a kind.
"""
