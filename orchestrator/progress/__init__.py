"""The progress of a run: on its terminal, in plain lines, and in a file for other shells.

Start with ``counter.py``: it counts the events of a run, estimates when it will be done, and gives snapshots
(``snapshot.py``). ``display.py`` shows snapshots while the run lasts, through ``view.py`` on a terminal, and
writes them to the status file (``status_file.py``), which ``status_view.py`` shows to other shells.
"""
