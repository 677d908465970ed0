"""The numbers of a report: panels of comparable rows, and variants of methods.

Start with ``study`` and ``panel``, which arrange the rows of ``orchestrator.analysis``.
"""
