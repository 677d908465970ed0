"""The adaptation methods, one file each. Importing this package registers them all.

Methods that other installed packages add are registered too (:mod:`bolt.util.outside`).

Start with :mod:`bolt.methods.base`, the contract that every method fulfils, and :mod:`bolt.methods.zero_shot`, the
shortest method. :mod:`bolt.methods.common` holds the building blocks that methods share.
"""

import importlib
import pkgutil

from bolt.methods.base import METHODS, Method, TowerPasses, UnknownName
from bolt.util.outside import METHODS_GROUP, load_outside

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

for _ in load_outside(METHODS_GROUP):
    pass  # importing the module has registered its methods

__all__ = ["METHODS", "Method", "TowerPasses", "UnknownName"]
