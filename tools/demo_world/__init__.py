"""Pre-training of the demo's tiny CLIP by ``pretrain.py``, on the captioned pictures of ``caption_pairs.py``."""
