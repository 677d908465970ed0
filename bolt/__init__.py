"""Adapt a CLIP model to a few labelled images, predict labels with the adapted model, save it and load it.

Start with :func:`load_backbone`, :func:`adapt` and :func:`load_model`. The adaptation methods are in
:mod:`bolt.methods`. In the list model > methods > training > task > spectral > clip, a folder imports only folders to
its right. No module reads a grid or a catalog, and none needs an experiment tracker or a cluster. Every name in
``__all__`` is imported on first use, so ``import bolt`` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bolt.clip.backbone import Backbone as Backbone
    from bolt.methods import METHODS as METHODS
    from bolt.model.api import adapt as adapt
    from bolt.model.api import load_backbone as load_backbone
    from bolt.model.api import load_sources as load_sources
    from bolt.model.api import read_folder as read_folder
    from bolt.model.loading import load_model as load_model
    from bolt.model.model import Model as Model
    from bolt.model.model import Prediction as Prediction

_MODULE_OF = {
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

__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
