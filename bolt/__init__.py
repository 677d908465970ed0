"""The science of the benchmark, and a library by itself: adapt a CLIP to a handful of images, predict, save, load.

Nothing in here knows a configuration file, a tracker or a cluster; of paths, only the modules that read checkpoints and
models, and write models, do. The names below are imported when they are first used, so ``import bolt`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone
    from bolt.methods import METHODS
    from bolt.model.api import adapt, load_backbone, load_sources, read_folder
    from bolt.model.loading import load_model
    from bolt.model.model import Model, Prediction

_HOME = {
    "METHODS": "bolt.methods",
    "Backbone": "bolt.clip.backbone",
    "Model": "bolt.model.model",
    "Prediction": "bolt.model.model",
    "adapt": "bolt.model.api",
    "load_backbone": "bolt.model.api",
    "load_model": "bolt.model.loading",
    "load_sources": "bolt.model.api",
    "read_folder": "bolt.model.api",
}

__all__ = [
    "METHODS",
    "Backbone",
    "Model",
    "Prediction",
    "adapt",
    "load_backbone",
    "load_model",
    "load_sources",
    "read_folder",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
