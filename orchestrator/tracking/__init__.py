"""MLflow as a view of the results: the only room that imports it.

``runs.py`` and ``summaries.py`` say what tracked runs hold; ``background.py`` and ``patience.py`` write them, while
cells run and afterwards; ``server.py`` serves them to many users; ``registering.py`` and ``serving.py`` put models into
its registry; ``ui.py`` opens its web interface where there is something to see.
"""
