"""The demo's world: small image tasks that are drawn, so that everything runs on a laptop without a download.

Start with ``tasks.py``: it lists the tasks and is cheap to import. ``drawing.py`` draws their images with the shapes of
``pictures/``; it loads PyTorch and the fonts of matplotlib.
"""
