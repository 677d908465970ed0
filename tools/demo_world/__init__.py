"""Pre-training of the demo's tiny CLIP: ``pretrain.py`` learns from the captioned pictures of ``caption_pairs.py``."""
