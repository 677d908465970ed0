"""The tiny CLIP: its pre-training pictures with captions (``caption_pairs.py``) and its training (``pretrain.py``).

Start with ``pretrain.py``.
"""
