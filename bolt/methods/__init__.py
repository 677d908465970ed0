"""The methods: one file each, found by being in this folder."""

from __future__ import annotations

import importlib
import pkgutil

from bolt.methods.base import METHODS, Method, UnknownSetting, Work

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["METHODS", "Method", "UnknownSetting", "Work"]
