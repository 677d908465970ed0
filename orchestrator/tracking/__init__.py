"""MLflow as a view of the results: the only package that imports MLflow.

``runs.py`` and ``summaries.py`` say what the tracked runs hold; ``tracker.py`` writes them. ``background.py`` does so
while cells run, ``retry.py`` afterwards; ``grid_runs.py`` starts both for a grid. ``location.py`` says where a store's
runs are tracked, ``client.py`` connects, ``ui.py`` serves MLflow's web interface, and ``model_registry.py`` registers
saved models. Start at ``tracker.py``.
"""
