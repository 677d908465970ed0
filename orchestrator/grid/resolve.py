"""Look up and check the methods and the protocol that a block names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from bolt.methods import METHODS, Method, UnknownName
from bolt.protocol import PROTOCOLS, SWITCHES, Precision, Protocol
from orchestrator.catalog import BackboneEntry, DatasetEntry
from orchestrator.catalog.location import Location
from orchestrator.core.cell import MethodRef
from orchestrator.grid.options import OPTION, Overrides
from orchestrator.grid.schema import MethodChoice
from orchestrator.tracks import Track
from orchestrator.util.errors import UserError, short_repr

_HINTS = get_type_hints(Protocol)
_CHOICES = {name: (False, True) if _HINTS[name] is bool else get_args(_HINTS[name]) for name in SWITCHES}
"""Switch of a protocol -> the values that it can have."""


def missing_part(method: Method, settings: Any, entry: BackboneEntry) -> str | None:
    """Return what the method needs and the backbone lacks, with the reason; ``None`` if the backbone lacks nothing."""
    if method.needs_matrices(settings) and not entry.has_matrices:
        return f"the weight matrices of the image tower, and the matrices of {entry.name} have no names"
    if method.clips_own_tower and entry.timm:
        return f"CLIP's own vision transformer, and the image tower of {entry.name} is timm's"
    if method.trains_text(settings) and not entry.trainable_text:
        return f"a causal text transformer to train, and the text side of {entry.name} is another model"
    return None


@dataclass(frozen=True)
class ResolvedMethod:
    """One entry of a block's ``methods``.

    Attributes:
        ref: the identity of the method, with the value of every setting.
        settings: the settings of the method, on the block's track.
        uses_sources: whether the method, with these settings, needs sources.
        label: the label that the entry states. An entry without a label has ``name[preset]`` if it selects a preset,
            and ``None`` if it does not.
        precision: the number format of the towers, if the entry states one.
        location: the location of the entry, for messages.
    """

    method: Method
    ref: MethodRef
    settings: Any
    uses_sources: bool
    label: str | None
    precision: Precision | None
    location: Location

    def check_backbone(self, entry: BackboneEntry) -> None:
        """Raise ``UserError`` if the backbone's image tower or text side is of a kind that the method cannot use."""
        if lacks := missing_part(self.method, self.settings, entry):
            able = (name for name, each in METHODS.items() if not missing_part(each, each.configure({}), entry))
            hint = f"methods that run on {entry.name}: {', '.join(sorted(able))}"
            raise self.location.error(f"{self.method.name} needs {lacks}", hint)

    def check_episodes(self, pool: Iterable[DatasetEntry]) -> None:
        """Raise ``UserError`` if a dataset in ``pool`` has fewer training images than one episode of meta-learning."""
        if self.method.meta_recipe is None:
            return
        recipe = self.method.meta_recipe(self.method.configure(self.ref.settings_dict()))
        needed = recipe.support + recipe.query
        for entry in pool:
            if entry.sizes.train < needed:
                has = f"but {entry.name} has {entry.sizes.train} to train on"
                what = f"an episode of {self.method.name} has {needed} images, {has}"
                raise self.location.error(what, "lower meta_support or meta_query")


def resolve_method(
    choice: MethodChoice, track: Track, protocol: Protocol, overrides: Overrides, location: Location
) -> ResolvedMethod:
    """Return the method that an entry of ``methods`` names, with the overrides applied to its settings.

    Settings that a switch overrides are noted in ``overrides.notes``. If the entry has overrides, a setting without an
    effect is noted in ``overrides.idle``.

    Raises ``UserError`` for an unknown method or setting, for an invalid value of a setting, and for a method that
    cannot be measured on the track. If the entry has no overrides, a setting without an effect raises it too.
    """
    if choice.name not in METHODS:
        raise location.unknown_name("method", choice.name, METHODS)
    method = METHODS[choice.name]
    if not track.takes(method):
        able = sorted(name for name, other in METHODS.items() if track.takes(other))
        names_classes = method.names_new_classes or not track.meets_new_classes
        reason = f", but on: {', '.join(sorted(method.tracks))}"
        reason = reason if names_classes else ": it cannot classify classes that it was not adapted to"
        what = f"{method.name} cannot be measured on the {track.name} track{reason}"
        raise location.error(what, f"methods that can: {', '.join(able) or 'none yet'}")
    precision, changes = choice.precision, dict(overrides.methods.get(method.name, {}))
    if "precision" in changes:
        precision, known = changes.pop("precision"), get_args(Precision)
        if precision not in known:
            raise (OPTION / method.name / "precision").unknown_name("number format", str(precision), known)
    if changes:
        _configure(method, choice.settings, track, location)
    at = OPTION / method.name if changes else location
    settings = _configure(method, {**choice.settings, **changes}, track, at)
    try:
        measured_as = track.method_track or track.name
        method.check_effects(settings, measured_as, protocol)
        overrides.notes += method.overridden(settings, measured_as, protocol)
        overrides.idle[method.name] = ""
    except ValueError as error:
        if not changes:
            raise location.error(str(error)) from None
        overrides.idle.setdefault(method.name, str(error))
    preset = choice.settings.get("preset")
    label = choice.label or (f"{choice.name}[{preset}]" if preset else None)
    ref = MethodRef(method.name, method.version, method.identity_of(settings))
    return ResolvedMethod(method, ref, settings, method.needs_sources(settings), label, precision, location)


def _configure(method: Method, changes: Mapping[str, Any], track: Track, location: Location) -> Any:
    try:
        return track.configure(method, changes)
    except UnknownName as error:
        kind = "preset" if error.where.startswith("presets") else "setting"
        raise location.unknown_name(f"{kind} of {method.name}", error.name, error.known) from None
    except (ValueError, TypeError) as error:
        named = str(location).endswith(method.name)
        what = str(error).removeprefix(f"{method.name}.") if named else str(error)
        raise UserError(what, where=str(location)) from None


def resolve_protocol(value: Any, location: Location) -> Protocol:
    """Return the protocol that a name or ``{name: ..., switch: value}`` describes.

    Raises ``UserError`` for an unknown protocol or switch, and for an invalid value of a switch.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise location.error(f"{short_repr(value)} is not a protocol", "write a name, or {name: strict, switch: value}")
    if not isinstance(value["name"], str) or value["name"] not in PROTOCOLS:
        raise location.unknown_name("protocol", value["name"], PROTOCOLS)
    switches = {str(key): item for key, item in value.items() if key != "name"}
    for switch, chosen in switches.items():
        if switch not in SWITCHES:
            raise location.unknown_name("switch", switch, SWITCHES)
        choices = _CHOICES[switch]
        if not any(chosen == choice and type(chosen) is type(choice) for choice in choices):
            spelled = " or ".join("true" if c is True else "false" if c is False else repr(c) for c in choices)
            raise (location / switch).error(f"{switch} is {spelled}, not {short_repr(chosen)}")
    return PROTOCOLS[value["name"]].with_switches(**switches)
