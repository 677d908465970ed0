"""One colour, marker and line per method, the same in every figure and table of every report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

NEUTRAL = "#7d8590"
"""The zero-shot baseline: grey, because everything is measured against it."""

# Six of Okabe and Ito's colours, then those that lie furthest from them and from each other for readers with normal
# and with dichromatic vision (the tests simulate it), and are neither too pale for white nor too dark for black.
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a05adc", "#96140a", "#323cbe", "#82b478",
    "#820a8c", "#64465a", "#be3c0a", "#8c5a50", "#bec878", "#96c8be", "#50d2fa", "#a082fa", "#646482",
)  # fmt: skip
_MARKERS = "osD^vPX<>phd*"
_LINES = ("-", "--", "-.", ":")

_HOME = {
    "linear_probe": 0, "bolt": 1, "tip_adapter": 2, "lora": 3, "atlas": 4, "lp_plus_plus": 5, "layer_norm": 6,
    "meta_init": 7, "logistic_probe": 8, "tip_adapter_f": 9, "dora": 10, "full_finetune": 11, "bolt_pooled": 12,
    "task_arithmetic": 13, "tsv_merge": 14,
}  # fmt: skip
"""Places of the methods that this project has; any other name hashes to one."""

_SHADES = (0.45, -0.45, 0.7, -0.25, 0.25, -0.6)
"""How far the variants of a method are mixed towards white (positive) or black (negative), in turn."""


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    marker: str
    line: str


def styles_of(method_names: Mapping[str, str]) -> dict[str, Style]:
    """The style of every label, keyed by its method's name.

    Each name has a home in the palette, so a method keeps its colour from grid to grid; two that meet at one home
    are told apart by moving the later one, in alphabetical order, to the next free place. Several labels of one method
    share its colour in shades, the shortest label having the colour itself.
    """
    labels: dict[str, list[str]] = {}
    for label, name in method_names.items():
        labels.setdefault(name, []).append(label)
    taken: set[int] = set()
    styles: dict[str, Style] = {}
    for name in sorted(labels, key=lambda name: (name not in _HOME, name)):
        first = min(labels[name], key=lambda label: (len(label), label))
        variants = [first, *(label for label in labels[name] if label != first)]
        if name == "zero_shot":
            styles.update({label: _variant(NEUTRAL, "", "--", 0, i) for i, label in enumerate(variants)})
            continue
        place = _place(name, taken)
        taken.add(place)
        colour, line = _COLOURS[place % len(_COLOURS)], _LINES[place // len(_COLOURS) % len(_LINES)]
        marker = _MARKERS[place % len(_MARKERS)]
        styles.update({label: _variant(colour, marker, line, place, i) for i, label in enumerate(variants)})
    return {label: styles[label] for label in method_names}


def _place(name: str, taken: set[int]) -> int:
    """The name's home, or the next free place; every full round of the palette has another line."""
    size = len(_COLOURS)
    home = _HOME.get(name, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % size)
    lap = len(taken) // size
    return next(p for step in range(size) if (p := lap * size + (home + step) % size) not in taken)


def _variant(colour: str, marker: str, line: str, place: int, index: int) -> Style:
    """The ``index``-th label of one method: 0 is the method itself, the others have a shade and a marker each."""
    if index == 0:
        return Style(colour, marker, line)
    lap, shade = divmod(index - 1, len(_SHADES))
    marker = _MARKERS[(place + index) % len(_MARKERS)]
    return Style(_mixed(colour, _SHADES[shade]), marker, _LINES[(_LINES.index(line) + lap) % len(_LINES)])


def _mixed(colour: str, amount: float) -> str:
    """The colour moved towards white (1) or black (-1)."""
    end, share = (255, amount) if amount > 0 else (0, -amount)
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (end - channel) * share):02x}" for channel in channels)
