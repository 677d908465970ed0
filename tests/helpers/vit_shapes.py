"""The shapes of the image towers on which the papers count trained numbers."""

from bolt.clip.tower_shape import TowerShape

VIT_B32 = TowerShape(224, 32, 768, 12, 12, 3072, 512, "quick_gelu")
VIT_L14 = TowerShape(224, 14, 1024, 24, 16, 4096, 768, "quick_gelu")
