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

_LIGHTEST, _DARKEST = 0.55, -0.6
"""How far the first and the last variant of a method are mixed towards white (positive) and black (negative)."""


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    marker: str
    line: str


Styles = Mapping[str, Style]
"""The style of every label."""


def styles_of(method_names: Mapping[str, str]) -> dict[str, Style]:
    """The style of every label, keyed by its method's name.

    Each name has a home in the palette, so a method keeps its colour from grid to grid; two that meet at one home
    are told apart by moving the later one, in alphabetical order, to the next free place. Several labels of one method
    share its colour in shades from light to dark, in the order given; the method's own name, or else a label that
    begins all others, has the colour itself.
    """
    labels: dict[str, list[str]] = {}
    for label, name in method_names.items():
        labels.setdefault(name, []).append(label)
    taken: set[int] = set()
    styles: dict[str, Style] = {}
    for name in sorted(labels, key=lambda name: (name not in _HOME, name)):
        place, style = -1, Style(NEUTRAL, "", "--")
        if name != "zero_shot":
            place = _place(name, taken)
            taken.add(place)
            line = _LINES[place // len(_COLOURS) % len(_LINES)]
            style = Style(_COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)], line)
        plain = name if name in labels[name] else min(labels[name], key=len)
        if plain != name and not all(label.casefold().startswith(plain.casefold()) for label in labels[name]):
            plain = ""
        shaded = [label for label in labels[name] if label != plain]
        styles.update({label: _variant(style, place, i, len(shaded)) for i, label in enumerate(shaded)})
        if plain:
            styles[plain] = style
    return {label: styles[label] for label in method_names}


def _place(name: str, taken: set[int]) -> int:
    """The name's home, or the next free place; every full round of the palette has another line."""
    size = len(_COLOURS)
    home = _HOME.get(name, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % size)
    lap = len(taken) // size
    return next(p for step in range(size) if (p := lap * size + (home + step) % size) not in taken)


def _variant(style: Style, place: int, index: int, count: int) -> Style:
    """The ``index``-th of ``count`` labels of one method that stands at ``place``: a shade and a marker of its own."""
    amount = _LIGHTEST + (_DARKEST - _LIGHTEST) * (index / (count - 1) if count > 1 else 0)
    marker = _MARKERS[(place + 1 + index) % len(_MARKERS)]
    line = _LINES[(_LINES.index(style.line) + index // len(_MARKERS)) % len(_LINES)]
    return Style(_mixed(style.colour, amount), marker, line)


def _mixed(colour: str, amount: float) -> str:
    """The colour moved towards white (1) or black (-1)."""
    end, share = (255, amount) if amount > 0 else (0, -amount)
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (end - channel) * share):02x}" for channel in channels)
