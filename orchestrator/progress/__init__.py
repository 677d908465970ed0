"""The progress of a run: on the run's terminal, in plain lines, and in a file for other shells.

Start with ``counter.py``, which counts the events of a run, estimates the time left, and makes snapshots
(``snapshot.py``). During the run, ``display.py`` shows the snapshots and writes them to the status file
(``status_file.py``). ``view.py`` has the view for a terminal, and shows the status file in other shells.
"""
