"""What a grid would do and what it takes, worked out before anything runs.

Start with ``plan.py``: a plan compares a grid with a store. ``cost.py`` predicts seconds and memory from finished
cells; ``estimate.py`` uses it for the plan's duration and ``packing.py`` for each cell's share of a GPU.
``gpu_estimate.py`` shows the hours on a kind of GPU, from the table in ``gpu_speeds.py``. ``checks.py`` checks that the
plan can run here. ``plan_view.py`` is what the ``plan`` command prints, and ``cell_list.py`` is what ``cells`` lists.
"""
