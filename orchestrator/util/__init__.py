"""Helpers that do not depend on benchmarks: errors, fingerprints, units, groups, locks, folders, signals, hardware.

Start with ``errors.py``: :class:`UserError` is how every part of the engine reports what a user can fix.
``identity.py`` makes the fingerprints that name artifacts and cells.
"""
