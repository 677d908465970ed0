"""MLflow as a view of the results: the only package that imports MLflow.

``runs.py``, ``summaries.py`` and ``means.py`` make the content of the runs, and ``tracker.py`` writes the runs.
``background.py`` calls the tracker while cells run, and ``retry.py`` calls it afterwards. ``grid_runs.py`` starts both.
``location.py`` says where a store's runs are tracked, ``client.py`` connects to MLflow, and ``errors.py`` explains its
errors. ``ui.py`` serves MLflow's web interface, and ``model_registry.py`` registers saved models. Start reading in
``tracker.py``.
"""
