"""The numbers of a report: groups of comparable rows, and variants of methods.

Start with ``grid_results`` and ``comparison_group``, which arrange the rows of ``orchestrator.analysis``.
"""
