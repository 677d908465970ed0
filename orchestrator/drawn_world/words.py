"""The words of the drawn world: the names of everything that can be drawn. It imports no PyTorch, so it loads fast."""

import string
from typing import Literal

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LETTERS = tuple(string.ascii_lowercase)
GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu",
    "nu", "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
)  # fmt: skip

Colour = tuple[float, float, float]

Kind = Literal["digit", "upper", "lower", "greek"]
KINDS: tuple[Kind, ...] = ("digit", "upper", "lower", "greek")
KIND_WORDS: dict[Kind, tuple[str, ...]] = {"digit": DIGITS, "upper": LETTERS, "lower": LETTERS, "greek": GREEK}
"""Names of the characters of each kind, in the order of the glyph atlas."""
KIND_NAMES = ("a digit", "a capital letter", "a small letter", "a Greek letter")

INKS: dict[str, Colour] = {
    "black": (0.06, 0.06, 0.06),
    "white": (0.95, 0.95, 0.95),
    "red": (0.85, 0.12, 0.12),
    "green": (0.12, 0.62, 0.18),
    "blue": (0.12, 0.22, 0.85),
    "yellow": (0.95, 0.85, 0.15),
    "orange": (0.95, 0.50, 0.08),
    "purple": (0.55, 0.15, 0.65),
    "cyan": (0.15, 0.78, 0.82),
    "pink": (0.95, 0.55, 0.72),
    "brown": (0.42, 0.26, 0.13),
    "grey": (0.50, 0.50, 0.50),
}
INK_NAMES = tuple(INKS)

SEASONS = ("spring", "summer", "autumn", "winter")
ROOFS: dict[str, Colour] = {
    "red": (0.70, 0.24, 0.17),
    "grey": (0.52, 0.53, 0.55),
    "brown": (0.40, 0.27, 0.18),
    "white": (0.92, 0.92, 0.90),
    "blue": (0.22, 0.38, 0.72),
}
"""Colours of roofs by name. A colour is red, green and blue from 0 to 1."""
