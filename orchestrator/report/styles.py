"""The style of a report: its signs and number formats, and the colour, marker and line of every method."""

import hashlib
import itertools
from collections.abc import Mapping

from orchestrator.util.grouping import grouped

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"

SELECTED = "†"
"""The sign after a name or title if test labels may have chosen the numbers."""
SELECTED_NOTE = "† Selected on the test set: test labels chose settings or a scale, which flatters the accuracy."

NEUTRAL = "#7d8590"
"""The colour of the zero-shot baseline: grey."""

# The first six colours are those of Okabe and Ito. The others differ as much as possible from these six and from each
# other, also for colour-blind readers (a test simulates dichromatic vision). None is too pale on white or too dark on
# black.
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a05adc", "#96140a", "#323cbe", "#82b478",
    "#820a8c", "#64465a", "#be3c0a", "#8c5a50", "#bec878", "#96c8be", "#50d2fa", "#a082fa", "#646482",
)  # fmt: skip
MARKERS = "osD^vPX<>phd*"
LINES = ("-", "--", "-.", ":")

_LIGHTEST, _DARKEST = 0.55, -0.6
"""How a method's colour is changed for its first and for its last variant: the share of white that is mixed into it or,
if negative, of black."""


def signed(value: float, digits: int = 2) -> str:
    """Return a difference with its sign: ``+3.10``, ``-0.40`` with a true minus sign, ``0.00``."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def digits_of(images: int) -> int:
    """Return how many decimals an accuracy in per cent deserves: 1 for fewer than 1,000 test images, else 2.

    One image of 600 changes the accuracy by 0.17 points, so a second decimal would say nothing.
    """
    return 1 if images < 1000 else 2


def k_title(k: int, metric: str = "accuracy") -> str:
    """Return the title of a column: ``k = 4``, or ``metric`` if k is 0, which stands for "without a support"."""
    return f"k = {k}" if k else metric


def at_k(k: int) -> str:
    """Return the end of a title about one k: ``" at k = 4"``, empty for k = 0."""
    return f" at k = {k}" if k else ""


def styles_of(method_names: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return how every label is drawn: matplotlib's ``color``, ``marker`` and ``linestyle``, for ``plot``.

    ``method_names`` maps each label to the name of its method.

    A method's position in the palette is its ``Method.palette``. Without one, a hash of its name gives the position. So
    the method has the same colour in every grid, unless another method of the grid has taken this position: then it
    gets the next free one. Methods with a ``Method.palette`` are placed first, then the others in alphabetical order.

    Several labels of one method get shades of its colour, from light to dark in the order given. The colour itself goes
    to the label that equals the method's name. Without such a label, it goes to the label with which all other labels
    begin, if there is one.
    """
    from bolt.methods import METHODS  # imports torch

    fixed = {name: METHODS[name].palette for name in set(method_names.values()) if name in METHODS}
    labels = grouped(method_names, lambda label: method_names[label])
    taken: set[int] = set()
    styles: dict[str, dict[str, str]] = {}
    for name in sorted(labels, key=lambda name: (fixed.get(name) is None, name)):
        position, style = -1, {"color": NEUTRAL, "marker": "", "linestyle": "--"}
        if name != "zero_shot":
            own = fixed.get(name)
            position = _free_position(name, taken) if own is None else own
            taken.add(position)
            line = LINES[position // len(_COLOURS) % len(LINES)]
            marker = MARKERS[position % len(MARKERS)]
            style = {"color": _COLOURS[position % len(_COLOURS)], "marker": marker, "linestyle": line}
        plain = name if name in labels[name] else min(labels[name], key=len)
        if plain != name and not all(label.casefold().startswith(plain.casefold()) for label in labels[name]):
            plain = ""
        shaded = [label for label in labels[name] if label != plain]
        styles.update({label: _variant(style, position, i, len(shaded)) for i, label in enumerate(shaded)})
        if plain:
            styles[plain] = style
    return {label: styles[label] for label in method_names}


def _free_position(name: str, taken: set[int]) -> int:
    """Return the first free position, counted from the hash of ``name``. Colours repeat only when all are taken."""
    size = len(_COLOURS)
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % size
    positions = (cycle * size + (first + step) % size for cycle in itertools.count() for step in range(size))
    return next(position for position in positions if position not in taken)


def _variant(style: Mapping[str, str], position: int, index: int, count: int) -> dict[str, str]:
    """Return the style of the ``index``-th of ``count`` variants of the method at ``position``."""
    amount = _LIGHTEST + (_DARKEST - _LIGHTEST) * (index / (count - 1) if count > 1 else 0)
    marker = MARKERS[(position + 1 + index) % len(MARKERS)]
    line = LINES[(LINES.index(style["linestyle"]) + index // len(MARKERS)) % len(LINES)]
    return {"color": _mixed(style["color"], amount), "marker": marker, "linestyle": line}


def _mixed(colour: str, amount: float) -> str:
    """Return the colour mixed with white (``amount`` up to 1) or black (down to -1)."""
    end, share = (255, amount) if amount > 0 else (0, -amount)
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (end - channel) * share):02x}" for channel in channels)
