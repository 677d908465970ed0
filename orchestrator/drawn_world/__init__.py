"""The demo's world: small image tasks that are drawn, so that everything runs on a laptop without a download.

Start with ``tasks.py``, which lists the tasks and is cheap to import. ``drawing.py`` draws the images with the shapes
of ``pictures/``; it imports PyTorch and needs the fonts of matplotlib.
"""
