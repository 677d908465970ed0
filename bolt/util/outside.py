"""Finds installed packages that add methods or catalog files to the project, by their entry points."""

from collections.abc import Iterator
from importlib import metadata
from typing import Any

METHODS_GROUP = "bolt.methods"
"""Group of the entry points that name modules; importing such a module registers its methods."""

CATALOG_GROUP = "orchestrator.catalog"
"""Group of the entry points whose values are paths of catalog files."""


class BrokenPackage(ImportError):
    """An installed package that adds methods or catalog files cannot be imported."""


def load_outside(group: str) -> Iterator[tuple[Any, str]]:
    """Yield the value of each entry point of a group, with the package that declares it, such as ``my-methods 1.2``.

    Raises :class:`BrokenPackage`, which names the package, if a value cannot be loaded.
    """
    for point in sorted(metadata.entry_points(group=group), key=lambda point: (point.name, point.value)):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            value = point.load()
        except Exception as error:
            raise BrokenPackage(
                f"the package {package} adds {point.value} to {group}, but {point.value} cannot be imported: "
                f"{type(error).__name__}: {error}\n"
                f"  repair the package, or uninstall it: pip uninstall {package.split()[0]}"
            ) from error
        yield value, package


def outside_packages() -> dict[str, str]:
    """Return the packages that add methods or catalog files: name -> version. None of them is imported."""
    points = [*metadata.entry_points(group=METHODS_GROUP), *metadata.entry_points(group=CATALOG_GROUP)]
    return {point.dist.name: point.dist.version for point in points if point.dist}
