"""MLflow as a view of the results: the only room that imports it, and of a run only ``tracker.py`` does.

``runs.py`` and ``summaries.py`` say what tracked runs hold; ``registering.py`` and ``serving.py`` put models into its
registry; ``ui.py`` opens its web interface where there is something to see.
"""
