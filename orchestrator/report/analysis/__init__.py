"""The numbers of a report: panels of comparable rows, variants of methods, effects of protocol switches.

Start with ``study`` and ``panel``, which arrange the rows of ``orchestrator.analysis``.
"""
