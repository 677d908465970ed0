"""The contract of a method, and the one place that registers them.

A method is one file in this folder: a frozen dataclass of settings, an ``adapt`` function, and one ``register``
call. Importing :mod:`bolt.methods` finds every file; nothing else has to be touched.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bolt.task.task import Adapted, Task
from bolt.training.meta import MetaRecipe


@dataclass(frozen=True)
class Work:
    """How much encoding one cell needs, in images through the tower; what a plan's estimate is made of.

    Attributes:
        forward: images encoded without gradient beyond the cached features.
        training: images taken through forward and backward of the tower.
    """

    forward: int = 0
    training: int = 0


@dataclass(frozen=True)
class Method:
    """One adaptation method.

    Attributes:
        name: lower-case identifier used in grids, results and tables.
        title: as printed in tables.
        paper: address of the paper or reference implementation.
        settings: the frozen dataclass of its settings; its defaults are the method's recipe.
        adapt: ``adapt(task, settings) -> Adapted``.
        version: raised whenever a change of the code changes the numbers; part of a cell's identity.
        tracks: the tracks it can be measured on.
        track_defaults: per track, settings whose default differs there.
        presets: named groups of settings, chosen in a grid as the setting ``preset``.
        candidates: the settings that ``config_selection: best_on_test`` chooses among, as the authors' sweeps do.
        baseline: whether the authors' remote-sensing code trains it on lighter crops (``baseline_crop``).
        uses_support: whether it looks at images of the target at all; if not, its result does not depend on k or seed.
        uses_sources: whether it looks at the sources; if not, its result does not depend on them.
        directions: ``directions(settings, width, sources)`` -> leading directions per source and matrix that it asks
            of its sources, at a tower of that width; 0 for none.
        sums_sources: whether it asks for the sources' mean task vector, so that the domain's total is worth building.
        meta: ``meta(settings)`` -> the recipe of the meta-learned start it adapts from; its sources are then the other
            datasets' images instead of their models.
        support_views: views of the support whose frozen features it reads: ``None`` reads none, 0 the un-augmented
            ones only, V the views 1 to V too.
        work: ``work(support_size, settings) -> Work``.
        trains_tower: whether the adapted tower differs from the frozen one, so that test images must be encoded.
        tiny: settings under which a test runs it in about a second.
    """

    name: str
    title: str
    paper: str
    settings: type[Any]
    adapt: Callable[[Task, Any], Adapted]
    version: int = 1
    tracks: frozenset[str] = frozenset({"fewshot", "ood", "meta"})
    track_defaults: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    candidates: Callable[[Any], Sequence[Any]] = lambda settings: (settings,)
    baseline: bool = False
    uses_support: bool = True
    uses_sources: bool = False
    trains_tower: bool = False
    directions: Callable[[Any, int, int], int] = lambda settings, width, sources: getattr(settings, "top_k", 0)
    sums_sources: bool = False
    meta: Callable[[Any], MetaRecipe] | None = None
    support_views: Callable[[Any], int | None] = lambda settings: None
    work: Callable[[int, Any], Work] = lambda support_size, settings: Work()
    tiny: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def configure(self, changes: Mapping[str, Any], track: str = "fewshot") -> Any:
        """The settings on a track with ``changes`` applied, whole numbers widened to float where the field is one.

        ``preset`` among the changes stands for a named group of them; the others override it. Raises
        ``UnknownSetting`` with the nearest valid name, ``ValueError`` for a value of the wrong type or out of the
        range that the settings' ``__post_init__`` states.
        """
        known = {field.name: field for field in dataclasses.fields(self.settings)}
        changes = dict(changes)
        preset = changes.pop("preset", None)
        if preset is not None and preset not in self.presets:
            raise UnknownSetting(str(preset), tuple(self.presets), f"presets of method {self.name}")
        stated = {**self.track_defaults.get(track, {}), **(self.presets[preset] if preset else {}), **changes}
        values: dict[str, Any] = {}
        for key, value in stated.items():
            if key not in known:
                names = (*known, "preset") if self.presets else tuple(known)
                raise UnknownSetting(key, names, f"method {self.name}")
            default = getattr(self.settings(), key)
            values[key] = _coerce(f"{self.name}.{key}", value, default)
        return self.settings(**values)

    def run(self, task: Task, settings: Any) -> Adapted:
        """Adapt with the given settings or, under ``config_selection: best_on_test``, with the best candidate's.

        The best one is told by the task's oracle, the first of several, and then run again for the record; ``details``
        say which it was.
        """
        candidates = list(self.candidates(settings))
        if task.protocol.config_selection == "fixed" or len(candidates) == 1:
            return self.adapt(task, settings)
        if task.oracle is None:
            raise ValueError("config_selection is best_on_test, but the task has no oracle")
        quiet = dataclasses.replace(task, report=_unheard, after_epoch=_unheard)
        scores = [task.oracle(self.adapt(quiet, candidate)) for candidate in candidates]
        chosen = candidates[scores.index(max(scores))]
        varied = {
            f"selected_{field.name}": str(getattr(chosen, field.name))
            for field in dataclasses.fields(chosen)
            if len({repr(getattr(candidate, field.name)) for candidate in candidates}) > 1
        }
        adapted = self.adapt(task, chosen)
        return dataclasses.replace(adapted, details={**adapted.details, **varied})


def _unheard(epoch: int, anything: Any) -> None:
    """A callback that nobody listens to."""


def _coerce(where: str, value: Any, default: Any) -> Any:
    """``value`` as the type of ``default``, or ``ValueError`` saying what would be right."""
    if default is None:  # an optional number, whose range the settings state
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{where} is {value!r}; it takes a number or nothing")
        return value
    if isinstance(default, tuple) and isinstance(value, list | tuple):
        return tuple(_coerce(where, item, default[0]) if default else item for item in value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"{where} is {value!r}; it takes a {type(default).__name__} such as {default!r}")
    return value


class UnknownSetting(ValueError):
    """A name that does not exist, with the names that do."""

    def __init__(self, name: str, known: tuple[str, ...], where: str) -> None:
        self.name, self.known, self.where = name, known, where
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"{where} has no {name!r}; {hint}it has: {', '.join(known)}")


class Registry(Mapping[str, Method]):
    """Methods by name; a duplicate is an error, an unknown name suggests the nearest."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    def register(self, method: Method) -> Method:
        """Add a method. Raises ``ValueError`` for a name that is taken or not a lower-case identifier."""
        if method.name in self._methods:
            raise ValueError(f"two methods are called {method.name!r}")
        if not method.name.isidentifier() or method.name != method.name.lower():
            raise ValueError(f"a method's name is a lower-case identifier, not {method.name!r}")
        self._methods[method.name] = method
        return method

    def __getitem__(self, name: str) -> Method:
        try:
            return self._methods[name]
        except KeyError:
            raise UnknownSetting(name, tuple(sorted(self._methods)), "the method registry") from None

    def __contains__(self, name: object) -> bool:
        return name in self._methods

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)


METHODS = Registry()
register = METHODS.register
