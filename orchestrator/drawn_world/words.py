"""The words of the drawn world: names of what can be drawn. No tensors here, so that the registry imports fast."""

from __future__ import annotations

import string
from typing import Literal

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LETTERS = tuple(string.ascii_lowercase)
GREEK = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "omicron",
    "pi",
    "rho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "chi",
    "psi",
    "omega",
)

Kind = Literal["digit", "upper", "lower", "greek"]
KINDS: tuple[Kind, ...] = ("digit", "upper", "lower", "greek")
KIND_WORDS: dict[Kind, tuple[str, ...]] = {"digit": DIGITS, "upper": LETTERS, "lower": LETTERS, "greek": GREEK}
"""Names of the characters of each kind, in the atlas's order."""
KIND_NAMES = ("a digit", "a capital letter", "a small letter", "a Greek letter")

INK_NAMES = (
    "black",
    "white",
    "red",
    "green",
    "blue",
    "yellow",
    "orange",
    "purple",
    "cyan",
    "pink",
    "brown",
    "grey",
)
FAMILIES = ("sans", "serif", "typewriter")
STYLES = ("plain", "bold", "slanted")
FACE_NAMES = tuple(f"{style} {family}" for family in FAMILIES for style in STYLES)

SEASONS = ("spring", "summer", "autumn", "winter")
ROOF_NAMES = ("red", "grey", "brown", "white", "blue")
