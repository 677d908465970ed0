"""Settings of a method that have no effect because of another setting, a switch of the protocol or the track."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bolt.util.ranges import Range


@dataclass(frozen=True)
class Idle:
    """Settings that have no effect unless another setting has a certain value.

    Attributes:
        settings: names of the settings.
        unless: key -> value, or :class:`Range` of values. A key is the name of another setting, the name of a switch of
            the protocol, or ``track``. ``settings`` have an effect if at least one key has its value. If ``unless`` is
            empty, they never have an effect.
        agrees: ``agrees(values)`` -> whether the values of ``settings``, which have no effect, fit the other setting.
            Such values are not refused. ``values``: name -> value of every setting and switch.
        noted: whether a grid prints a note about the settings instead of refusing them. This is for settings that a
            switch of the protocol overrides: a grid with such settings can then run under every protocol.
    """

    settings: Sequence[str]
    unless: Mapping[str, Any]
    agrees: Callable[[Mapping[str, Any]], bool] = lambda values: False
    noted: bool = False

    def changed(self, values: Mapping[str, Any], usual: Any) -> list[str]:
        """Return the names of this rule's settings that differ from the defaults, ``usual``, but have no effect.

        ``values``: name -> value of each setting of the method and each switch of the protocol, and of ``track``.
        """
        if any(_allows(wanted, values[other]) for other, wanted in self.unless.items()) or self.agrees(values):
            return []
        return [name for name in self.settings if values[name] != getattr(usual, name)]

    def remedy(self, name: str, values: Mapping[str, Any], shown: Sequence[str]) -> str:
        """Return the end of a message about the setting ``name``: why it has no effect, and what to do.

        ``shown``: the other settings and switches that the caller can state.
        """
        for other in shown:
            wanted = self.unless[other]
            cure = f"set {other} to {wanted.words if isinstance(wanted, Range) else repr(wanted)}, or leave {name} out"
            return f"while {other} is {values[other]!r}: {cure if wanted is not None else 'leave out one of the two'}"
        if "track" in self.unless:
            return f"{'without' if values['track'].startswith('tta') else 'with'} labels: leave it out"
        return f"{'outside of a grid' if self.unless else 'on any track'}: leave it out"


def _allows(wanted: Any, value: Any) -> bool:
    return wanted.holds(value) if isinstance(wanted, Range) else bool(wanted == value)


IDLE_IN_TRAINING = (
    Idle(("warmup_fraction",), {"warmup_steps": None}, agrees=lambda values: values["warmup_fraction"] == 0),
    Idle(
        ("warmup_fraction", "warmup_steps"),
        {"schedule": Range("cosine or constant", lambda schedule: schedule != "halving")},
        agrees=lambda values: not (values["warmup_fraction"] or values["warmup_steps"]),
    ),
)
"""The settings of every :class:`bolt.training.loop.TrainingRecipe` that can be without effect, and when."""
