"""Ranges of settings: the type of a field states its range, and creating the settings checks the values.

``views: AtLeast1 = 10`` declares a number of views, and ``alphas: Annotated[tuple[float, ...], NOT_EMPTY]`` a tuple
with at least one number. The checks reach into optional values and into tuples.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """The allowed values of a setting.

    Attributes:
        words: description of the range, which follows "must be" in a message.
        holds: ``holds(value)`` -> whether the value is in the range.
    """

    words: str
    holds: Callable[[Any], bool]


AtLeast0 = Annotated[int, Range("at least 0", lambda value: value >= 0)]
AtLeast1 = Annotated[int, Range("at least 1", lambda value: value >= 1)]
AtLeast2 = Annotated[int, Range("at least 2", lambda value: value >= 2)]
NotNegative = Annotated[float, Range("at least 0", lambda value: value >= 0)]
Positive = Annotated[float, Range("above 0", lambda value: value > 0)]
Share = Annotated[float, Range("in (0, 1]", lambda value: 0 < value <= 1)]
Fraction = Annotated[float, Range("in [0, 1]", lambda value: 0 <= value <= 1)]
Below1 = Annotated[float, Range("in [0, 1)", lambda value: 0 <= value < 1)]
NOT_EMPTY = Range("a list that is not empty", bool)
EACH_ONCE = Range("a list that names nothing twice", lambda value: len(set(value)) == len(value))


def some_of(words: Collection[str]) -> Range:
    """Return the range of lists of one or more words, all of them from ``words``."""
    return Range(f"some of {', '.join(words)}", lambda value: bool(value) and set(value) <= set(words))


class Checked:
    """Base class of dataclasses whose fields state their ranges. A wrong value raises ``ValueError``."""

    def __post_init__(self) -> None:
        check_ranges(self)


def check_ranges(settings: Any) -> None:
    """Raise ``ValueError``, which names the field, if a value is outside of the range or ``Literal`` of its type."""
    for name, hint in _hints(type(settings)):  # type: ignore[arg-type]  # mypy takes a class for unhashable
        check_value(name, getattr(settings, name), hint)


@cache
def _hints(settings_class: type[Any]) -> list[tuple[str, Any]]:
    """Return pairs (field, type): each type that the class or a base class gives to the field.

    All of these types are checked, so a subclass cannot widen the range of a field.
    """
    stated = [pair for each in settings_class.__mro__ for pair in get_type_hints(each, include_extras=True).items()]
    return list(dict.fromkeys(stated))


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise ``ValueError``, which names the value, if the value is outside of the range or ``Literal`` of its type.

    A text such as ``"no"`` is refused where ``bool`` is the type: it would count as true.
    """
    parts = get_args(hint)
    if type(None) in parts and value is None:
        return
    if get_origin(hint) is Literal:
        if value not in parts:
            raise ValueError(f"{name} is {' or '.join(map(str, parts))}, not {value!r}")
    elif get_origin(hint) is Annotated:
        for limit in parts[1:]:
            if not limit.holds(value):
                raise ValueError(f"{name} must be {limit.words}, not {value!r}")
        check_value(name, value, parts[0])
    elif hint is bool and value not in (True, False):
        raise ValueError(f"{name} is True or False, not {value!r}")
    elif parts:  # an optional value, or the items of a tuple
        for item in value if get_origin(hint) is tuple else (value,):
            check_value(name, item, parts[0])
