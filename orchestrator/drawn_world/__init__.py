"""A drawn world: small tasks and a small CLIP, so that everything can run on a laptop without a download.

``tasks`` lists the tasks and is cheap to import. ``drawing`` draws their pictures; it loads PyTorch and the fonts of
matplotlib. ``pretrain`` trains the small CLIP.
"""
