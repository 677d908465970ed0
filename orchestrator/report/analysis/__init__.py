"""The numbers of a report: rows, panels of comparable rows, statistics and verdicts.

Start with ``rows`` (one per cell and test split), then ``study`` and ``panel``, which arrange them.
"""
