"""One colour, marker and line per method, the same in every figure and table of every report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

NEUTRAL = "#7d8590"
"""The zero-shot baseline: grey, because everything is measured against it."""

# Okabe and Ito's colours (without black, which a dark page swallows), then Tol's muted ones; yellow last but for
# overflow, because a thin yellow line on white is hard to see for everybody.
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#6f5bd3", "#999933", "#b0455f", "#44aa99", "#aa4499", "#8c6d46", "#d6c700",
)  # fmt: skip
_MARKERS = "osD^vPX<>phd*"
_LINES = ("-", "--", "-.", ":")

_HOME = {
    "bolt": 1, "linear_probe": 0, "tip_adapter": 2, "lora": 3, "atlas": 4, "lp_plus_plus": 5, "layer_norm": 6,
    "meta_init": 7,
}  # fmt: skip
"""Places of the methods that meet in nearly every grid, far apart from each other; any other name hashes to one."""


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    marker: str
    line: str


def styles_of(method_names: Mapping[str, str]) -> dict[str, Style]:
    """The style of every label, keyed by its method's name.

    Each name has a home in the palette, so a method keeps its colour from grid to grid; two that meet at one home
    are told apart by moving the later one, in alphabetical order, to the next free place.
    """
    styles: dict[str, Style] = {}
    taken: dict[int, str] = {}
    size = len(_COLOURS)

    def key(label: str) -> tuple[bool, bool, str, str]:
        name = method_names[label]
        variants = sorted((other for other, own in method_names.items() if own == name), key=lambda v: (len(v), v))
        return variants[0] != label, name not in _HOME, name, label

    for label in sorted(method_names, key=key):
        name = method_names[label]
        if name == "zero_shot" and NEUTRAL not in {style.colour for style in styles.values()}:
            styles[label] = Style(NEUTRAL, "", "--")
            continue
        home = _HOME.get(name, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % size)
        lap = 0
        while len(taken) >= size * (lap + 1):
            lap += 1
        place = next(p for step in range(size) if (p := lap * size + (home + step) % size) not in taken)
        taken[place] = label
        styles[label] = Style(_COLOURS[place % size], _MARKERS[place % size], _LINES[lap % len(_LINES)])
    return {label: styles[label] for label in method_names}
