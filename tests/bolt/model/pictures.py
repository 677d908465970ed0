"""Twelve noisy pictures of three colours, and models that are adapted to them."""

import numpy as np
from PIL import Image

import bolt
from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.model.model import Model
from bolt.spectral.sources import Sources
from tests.helpers.quick_settings import quick_settings

NAMES = ["red things", "green things", "blue things"]


def picture(label: int, generator: np.random.Generator) -> Image.Image:
    """Return a noisy picture of a colour that is not square."""
    pixels = generator.integers(0, 120, (40, 52, 3))
    pixels[..., label] += 120
    return Image.fromarray(pixels.astype(np.uint8))


_GENERATOR = np.random.default_rng(1)
LABELS = [label for label in range(3) for _ in range(4)]
IMAGES = [picture(label, _GENERATOR) for label in LABELS]


def adapted(backbone: Backbone, method: str, sources: Sources | None = None) -> Model:
    """Adapt to ``IMAGES`` with a method, with the method's settings for tests."""
    labels = LABELS if "fewshot" in METHODS[method].tracks else None
    start = backbone.tower.state_dict_open_clip() if METHODS[method].meta_recipe else None
    settings = quick_settings(method)
    return bolt.adapt(backbone, IMAGES, labels, NAMES, method=method, sources=sources, initial=start, **settings)
