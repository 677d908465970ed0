"""The command line: one file for each command or group of commands, registered in ``app``.

Start with ``session.py``: it is the ``grid`` command, from the plan to the report. ``workspace.py`` opens the grid, the
catalog and the store for every command that needs them.
"""
