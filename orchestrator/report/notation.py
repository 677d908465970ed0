"""Signs and number formats that tables, figures and sentences share."""

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"

SELECTED = "†"
"""The sign after a name or title if test labels may have chosen the numbers."""
SELECTED_NOTE = "† Selected on the test set: test labels chose settings or a scale, which flatters the accuracy."


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
