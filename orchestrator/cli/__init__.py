"""The command line: one file for each command or group of commands, registered in ``app``.

``session`` is what the ``grid`` command runs. ``workspace`` opens what every command about a grid needs.
"""
