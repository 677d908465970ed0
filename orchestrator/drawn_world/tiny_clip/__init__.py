"""The tiny CLIP: its pre-training pictures with captions, and its pre-training."""
