"""What a grid would do and what it takes, worked out before anything runs.

Start with ``plan.py``: a plan compares a grid with a store. ``cost.py`` predicts seconds and memory from finished
cells; ``estimate.py`` uses it for the plan's duration and ``packing.py`` for each cell's share of a GPU.
``gpu_speeds.py`` has the speeds of kinds of GPUs. ``checks.py`` checks that the plan can run here. ``plan_view.py``
makes the output of the ``plan`` command.
"""
