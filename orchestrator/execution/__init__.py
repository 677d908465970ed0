"""Run a plan: build its missing artifacts, then run its open cells, in this process or on Ray.

Start reading at ``run.py``. ``backend.py`` has both places where a plan can run: this process and Ray. On Ray,
``cluster.py`` connects, ``task_graph.py`` runs graphs of build tasks, and the folder ``tune`` runs cells as trials of
Ray Tune.
"""
