"""The numbers of a report: groups of comparable rows, and variants of methods.

Start with ``grid`` and ``group``, which arrange the rows of ``orchestrator.analysis``.
"""
