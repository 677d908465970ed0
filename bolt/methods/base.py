"""The contract of an adaptation method, and the registry that holds all of them.

A method is one file in ``bolt/methods``. The file has two parts: a frozen dataclass of settings, and a function
``adapt(task, settings)``. The function is decorated with :data:`register`, which takes the fields of a :class:`Method`.
Importing :mod:`bolt.methods` imports every such file, so a new method needs no edit anywhere else.
``docs/adding-a-method.md`` shows a complete example.
"""

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from types import NoneType, UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_args, get_origin

import numpy as np

from bolt.methods.idle import IDLE_IN_TRAINING
from bolt.methods.idle import Idle as Idle
from bolt.protocol import ADDED_LATER, STRICT, Protocol
from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe
from bolt.training.meta import MetaRecipe
from bolt.util.ranges import check_ranges

Adapt = Callable[[Task, Any], Adapted]
AnyAdapt = TypeVar("AnyAdapt", bound=Adapt)
Card = ParamSpec("Card")


@dataclass(frozen=True)
class TowerPasses:
    """How many images one run of a method takes through the image tower, and how often prompts pass the text tower.

    A plan of a benchmark estimates the time of the run from these numbers.

    Attributes:
        forward: images encoded without a gradient. The cached features of support and test images do not count.
        training: images taken through the tower forward and backward.
        text_training: how often the prompts of all classes are taken through the text tower forward and backward.
    """

    forward: int = 0
    training: int = 0
    text_training: int = 0


@dataclass(frozen=True)
class Method:
    """One adaptation method: its code, its settings, and what it reads.

    A method receives only the inputs that it declares here; the benchmark loads nothing else for it. A cell is one run
    of a method with settings, on one backbone, dataset, number of images per class (k) and seed.

    Attributes:
        name: lower-case identifier, used in grids, results and tables; by default the name of the file of ``adapt``.
        title: the name printed in tables and figures.
        summary: what the method does, in a few words that can follow the title.
        palette: the method's position in the report's lists of colours, markers and lines; ``None``: the position is
            computed from the name. Positions from 19 on repeat colours. Two methods of one colour must not be in one
            test-time figure.
        paper: address of the paper or of the reference implementation; ``None`` if there is neither.
        adapt: ``adapt(task, settings) -> Adapted``. An error that it raises is recorded as the cell's failure.
        settings_class: a frozen dataclass, whose defaults are the recommended recipe; by default the type that
            ``adapt`` states for its ``settings``. Settings are part of a cell's identity.
        version: a number to be raised whenever a change of the code changes the results. It is part of a cell's
            identity.
        tracks: names of the tracks on which the method can be measured.
        track_defaults: track -> settings whose default differs on that track.
        presets: name -> group of settings. A grid selects one with the setting ``preset``.
        candidates: ``candidates(settings)`` -> the settings that the authors sweep over. The switch
            ``config_selection: best_on_test`` chooses among them; otherwise they are not used.
        baseline_crop: whether the protocol's switch ``baseline_crop`` applies to the method. Under this switch, methods
            are trained on lighter crops, as in the BOLT authors' remote-sensing code.
        uses_support: whether the method reads images of the target. If not, k and the seed do not change its result.
        uses_sources: whether the method reads the source datasets: their fine-tuned models or, with ``meta_recipe``,
            their images. If not, the set of sources does not change its result.
        reads_sources: ``reads_sources(settings)`` -> whether the method reads the sources with these settings. It is
            called only if ``uses_sources`` is set.
        changes_tower: whether the method may return a changed image tower, so that test images must be encoded again.
        names_new_classes: whether the adapted model can classify further classes, given their names. Its classifier
            then has :meth:`bolt.task.classifiers.Classifier.add_classes`. A method that learns numbers for each class
            cannot do that.
        source_directions: ``source_directions(settings, width, sources)`` -> how many leading singular directions of
            each source and matrix the method reads, for a tower of that width and that many sources. By default the
            setting ``top_k``, or 0 if there is no such setting.
        meta_recipe: ``meta_recipe(settings)`` -> the recipe of the meta-learned start that the method adapts from;
            ``None`` for a method that adapts from the pre-trained weights.
        support_feature_views: ``support_feature_views(settings)`` -> V, if the method reads the frozen features of the
            un-augmented support and of its augmented views 1 to V; ``None`` if it reads no features of the support.
        test_views: ``test_views(settings)`` -> the number of views of each test image whose frozen features the method
            reads, the un-augmented one included; 0 for none.
        uses_validation: whether the method chooses settings on validation images where the protocol gives them
            (:attr:`bolt.task.task.Task.validation`). It reads their un-augmented frozen features.
        trains_text: ``trains_text(settings)`` -> whether the method differentiates the text tower. Only then the task
            has the class names (:attr:`bolt.task.task.Task.text`), and the text tower is moved to the cell's device.
        reads_matrices: ``reads_matrices(settings)`` -> whether the method reads or trains weight matrices of the image
            tower by name. Not every tower has such names. ``None``: yes if it changes the tower or reads sources.
        clips_own_tower: whether the method needs CLIP's own vision transformer, because it trains the projection or
            adds tokens.
        tower_passes: ``tower_passes(support_size, settings)`` -> how many images and prompts the method takes through
            the towers.
        training_forwards: cost of one forward and backward pass of an image or a prompt, in forward passes of the
            frozen tower: 2 if only the input needs a gradient, 3 if all weights need one.
        idle: the settings that can be without effect, and when. If a user changes such a setting, a grid refuses it or
            prints a note (:class:`bolt.methods.idle.Idle`).
    """

    adapt: Adapt
    _: KW_ONLY
    name: str = ""
    title: str
    paper: str | None
    settings_class: type[Any] = NoneType
    version: int = 1
    tracks: frozenset[str] = frozenset({"fewshot", "ood", "meta"})
    track_defaults: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    candidates: Callable[[Any], Sequence[Any]] = lambda settings: (settings,)
    baseline_crop: bool = False
    uses_support: bool = True
    uses_sources: bool = False
    reads_sources: Callable[[Any], bool] = lambda settings: True
    changes_tower: bool = False
    names_new_classes: bool = False
    source_directions: Callable[[Any, int, int], int] = lambda settings, width, sources: getattr(settings, "top_k", 0)
    meta_recipe: Callable[[Any], MetaRecipe] | None = None
    support_feature_views: Callable[[Any], int | None] = lambda settings: None
    test_views: Callable[[Any], int] = lambda settings: 0
    uses_validation: bool = False
    trains_text: Callable[[Any], bool] = lambda settings: False
    reads_matrices: Callable[[Any], bool] | None = None
    clips_own_tower: bool = False
    tower_passes: Callable[[int, Any], TowerPasses] = lambda support_size, settings: TowerPasses()
    training_forwards: float = 3.0
    idle: Sequence[Idle] = ()
    summary: str = ""
    palette: int | None = None

    def __post_init__(self) -> None:
        if self.name == "" and inspect.isfunction(self.adapt):
            object.__setattr__(self, "name", self.adapt.__module__.rpartition(".")[2])
        if isinstance(self.tracks, set | list | tuple):
            object.__setattr__(self, "tracks", frozenset(self.tracks))
        for field in dataclasses.fields(self):
            _check_type(f"method {self.name!r}: {field.name}", getattr(self, field.name), field.type)
        if self.settings_class is NoneType:
            with suppress(KeyError, NameError):  # no parameter of this name, or a type that is imported for mypy only
                stated = inspect.signature(self.adapt, eval_str=True).parameters["settings"].annotation
                object.__setattr__(self, "settings_class", stated)
        if not dataclasses.is_dataclass(self.settings_class):
            raise ValueError(
                f"method {self.name!r} does not say which dataclass its settings are: annotate the parameter "
                "'settings' of adapt with the dataclass, and import the types of all parameters at run time; or pass "
                "the dataclass to register as settings_class"
            )

    @property
    def uses_source_models(self) -> bool:
        """Whether the method reads the sources' fine-tuned models.

        A method with a ``meta_recipe`` does not: it reads the sources' images.
        """
        return self.uses_sources and self.meta_recipe is None

    def needs_sources(self, settings: Any) -> bool:
        """Return whether the method reads the source datasets with these settings."""
        return self.uses_sources and self.reads_sources(settings)

    def needs_matrices(self, settings: Any) -> bool:
        """Return whether the method, with these settings, needs a tower whose weight matrices have names."""
        if self.reads_matrices is not None:
            return self.reads_matrices(settings)
        return self.changes_tower or self.needs_sources(settings)

    def configure(self, changes: Mapping[str, Any], track: str = "fewshot") -> Any:
        """Return the settings for a track, with ``changes`` applied to the defaults.

        The key ``preset`` in ``changes`` selects a named group of settings; the other keys override it. An integer is
        converted to float where the setting is a float.

        Raises:
            UnknownName: for a setting or preset that does not exist. The message suggests the nearest existing name.
            ValueError: for a value of the wrong type, and for a value that the setting's ``Literal``, its range
                (:mod:`bolt.util.ranges`) or the settings' ``__post_init__`` refuses.
        """
        fields = [field.name for field in dataclasses.fields(self.settings_class)]
        changes = dict(changes)
        preset = changes.pop("preset", None)
        if preset is not None and preset not in self.presets:
            raise UnknownName(str(preset), tuple(self.presets), f"presets of method {self.name}")
        given = {**self.track_defaults.get(track, {}), **(self.presets[preset] if preset else {}), **changes}
        defaults = self.settings_class()
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in fields:
                known = (*fields, "preset") if self.presets else tuple(fields)
                raise UnknownName(key, known, f"method {self.name}")
            values[key] = _converted(f"{self.name}.{key}", value, getattr(defaults, key))
        settings = self.settings_class(**values)
        check_ranges(settings)
        return settings

    def configure_strictly(self, changes: Mapping[str, Any], track: str, protocol: Protocol | None = None) -> Any:
        """Return the settings as :meth:`configure` does, but refuse a changed setting that has no effect.

        Raises the errors of :meth:`configure` and :meth:`check_effects`.
        """
        settings = self.configure(changes, track)
        self.check_effects(settings, track, protocol)
        return settings

    def check_effects(self, settings: Any, track: str, protocol: Protocol | None = None) -> None:
        """Raise ``ValueError`` if a changed setting has no effect because of another setting.

        If the method chooses among candidates, the candidates' settings are checked too. A caller who cannot choose a
        protocol and a track leaves ``protocol`` out; the message then names no switch and no track. Callers check new
        settings only, not those of a finished result.
        """
        for candidate in getattr(settings, "parsed", ()):
            candidate.method.check_effects(candidate.settings, "fewshot", protocol)
        for idle, (name, *_), values in self._idle_settings(settings, track, protocol or STRICT):
            if not idle.noted:
                shown = [other for other in idle.unless if protocol is not None or hasattr(settings, other)]
                raise ValueError(f"{self.name}.{name} has no effect {idle.remedy(name, values, shown)}")

    def overridden(self, settings: Any, track: str, protocol: Protocol) -> Iterator[str]:
        """Yield notes on settings that differ from their defaults but have no effect: the protocol overrides them.

        If the method chooses among candidates, notes on the settings of each candidate come first.
        """
        for candidate in getattr(settings, "parsed", ()):
            yield from candidate.method.overridden(candidate.settings, "fewshot", protocol)
        for idle, names, values in self._idle_settings(settings, track, protocol):
            for switch in idle.unless if idle.noted else ():
                which = ", ".join(f"{self.name}.{name}" for name in names)
                yield f"note: {switch}: {values[switch]} overrides {which}: the new cells get the same numbers"

    def _idle_settings(
        self, settings: Any, track: str, protocol: Protocol
    ) -> Iterator[tuple[Idle, list[str], Mapping[str, Any]]]:
        """Yield each rule that applies, the changed settings that have no effect, and the values of all settings."""
        own = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
        usual, values = self.configure({}, track), {**vars(protocol), "track": track, **own}
        general = IDLE_IN_TRAINING if isinstance(settings, TrainingRecipe) else ()
        for idle in (*general, *self.idle):
            if changed := idle.changed(values, usual):
                yield idle, changed, values

    @staticmethod
    def identity_of(settings: Any) -> tuple[tuple[str, Any], ...]:
        """Return (name, value) of each setting that is part of a cell's identity.

        A setting that was added later (:data:`ADDED_LATER`) is left out if it has its default value, so that older
        results keep their identity.
        """
        return tuple(
            (field.name, getattr(settings, field.name))
            for field in sorted(dataclasses.fields(settings), key=lambda field: field.name)
            if not (field.metadata == ADDED_LATER and getattr(settings, field.name) == field.default)
        )

    def run(self, task: Task, settings: Any) -> Adapted:
        """Adapt to the task with these settings, or with the best candidate under ``config_selection: best_on_test``.

        A candidate is one of the settings that ``candidates`` returns. The task's oracle scores the result of every
        candidate. The method then runs once more with the best one (at a tie, the first) and reports its metrics.
        ``details`` name the settings in which the candidates differ.
        """
        candidates = list(self.candidates(settings))
        if task.protocol.config_selection == "fixed" or len(candidates) == 1:
            return self.adapt(task, settings)
        assert task.oracle is not None, "under this switch every task has an oracle"
        unreported = dataclasses.replace(task, report=lambda *_: None, after_epoch=lambda *_: None)
        scores = [task.oracle(self.adapt(unreported, candidate)) for candidate in candidates]
        best = candidates[scores.index(max(scores))]
        selected = {
            f"selected_{field.name}": str(getattr(best, field.name))
            for field in dataclasses.fields(best)
            if len({repr(getattr(candidate, field.name)) for candidate in candidates}) > 1
        }
        adapted = self.adapt(task, best)
        return dataclasses.replace(adapted, details={**adapted.details, **selected})


def _check_type(name: str, value: Any, annotation: Any) -> None:
    """Raise ``ValueError`` if ``value`` is not of the annotated type. The types of its members are not checked."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    classes = [get_origin(kind) or kind for kind in kinds]
    if not isinstance(value, (*classes, *([int] if float in classes else []))):
        words = " or ".join("None" if kind is NoneType else kind.__name__ for kind in classes)
        raise ValueError(f"{name} is {value!r}; it takes a value of the type {words}")


def _converted(setting: str, value: Any, default: Any) -> Any:
    """Convert ``value`` to the type of ``default``. Raises ``ValueError`` if ``value`` is of another type."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{setting} is {value}; it takes a finite number")
    if default is None:  # an optional number; its range is checked later, as for all settings
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{setting} is {value!r}; it takes a number or null")
        return value
    if isinstance(default, tuple) and isinstance(value, list | tuple):
        return tuple(_converted(setting, item, default[0]) if default else item for item in value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ValueError(
            f"{setting} is {value!r}; it takes a value of the type {type(default).__name__}, such as {default!r}"
        )
    return value


class UnknownName(ValueError):
    """No method, setting or preset has this name. The message lists the existing names and suggests the nearest.

    Attributes:
        name: the unknown name.
        known: the names that exist.
        where: what was searched, e.g. ``"method bolt"``.
    """

    def __init__(self, name: str, known: tuple[str, ...], where: str) -> None:
        self.name, self.known, self.where = name, known, where
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"{where} has no {name!r}; {hint}it has: {', '.join(known)}")


class Registry(dict[str, Method]):
    """All methods by name. Looking up an unknown name raises :class:`UnknownName`."""

    def register(self, method: Method) -> Method:
        """Add a method. Raises ``ValueError`` if its name is taken or cannot be the name of a method.

        A function of the main module may be registered again, because the cell of a notebook may run again.
        """
        known, of_main = self.get(method.name), ("__main__", getattr(method.adapt, "__qualname__", ""))
        if known and not _origin(known.adapt) == _origin(method.adapt) == of_main:
            raise ValueError(f"two methods are called {method.name!r}")
        if not method.name.isidentifier() or method.name != method.name.lower() or method.name.startswith("__"):
            what = "give a lower-case identifier that does not begin with __, as name=..."
            raise ValueError(f"{method.name!r} cannot be a method's name: {what}")
        self[method.name] = method
        return method

    def __missing__(self, name: str) -> Method:
        raise UnknownName(name, tuple(sorted(self)), "the method registry")


def _origin(adapt: Adapt) -> tuple[str, str]:
    return adapt.__module__, getattr(adapt, "__qualname__", "")


METHODS = Registry()


def registering(
    card: Callable[Concatenate[Adapt, Card], Method], **defaults: Any
) -> Callable[Card, Callable[[AnyAdapt], AnyAdapt]]:
    """Return a function that takes fields of a method, and returns a decorator of ``adapt`` that registers the method.

    ``defaults`` fill in the other fields. ``card`` is :class:`Method`: mypy takes the parameters of the function from
    it, and so checks every field.
    """

    def with_fields(**fields: Any) -> Any:
        def decorated(adapt: AnyAdapt) -> AnyAdapt:
            METHODS.register(Method(adapt, **{**defaults, **fields}))
            return adapt

        return decorated

    return cast(Callable[Card, Callable[[AnyAdapt], AnyAdapt]], with_fields)


register = registering(Method)
"""Registers a method. It decorates ``adapt`` and takes the other fields of a :class:`Method`."""
register_tower_training = registering(
    Method,
    changes_tower=True,
    names_new_classes=True,
    tower_passes=lambda support_size, settings: TowerPasses(training=settings.epochs * support_size),
)
"""Registers a method that trains parts of the image tower. The fields above are the defaults of such methods."""
