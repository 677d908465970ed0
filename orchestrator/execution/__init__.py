"""Run a plan: build its missing artifacts, then run its open cells, in this process or on Ray.

Start reading at ``run.py``. It asks a backend to run task graphs and cells. ``local.py`` is the backend of this
process; ``ray_backend.py`` is the one on Ray. ``cluster.py`` connects to Ray, ``ray_graph.py`` runs graphs as Ray tasks
and the folder ``tune`` runs cells as trials of Ray Tune. ``ray_private.py`` holds every private name of Ray in use.
"""
