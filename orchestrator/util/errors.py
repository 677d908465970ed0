"""Errors for people: what is wrong, where, and what would be right.

The user can fix the cause of a :class:`UserError`. The command line prints it without a traceback and exits with
code 2. Any other exception that reaches the command line is a defect of this project and keeps its traceback.
"""

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """An error whose cause the user can fix.

    Args:
        what: what is wrong, as a sentence without a full stop.
        where: the file and field, or the option, with the error.
        hint: what would be right, such as the nearest name, a valid range, or a command to run.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        parts = [f"{where}: {what}" if where else what]
        if hint:
            parts.append(hint)
        super().__init__("\n  ".join(parts))


@contextmanager
def explained(*kinds: type[Exception], what: str = "", where: str = "", hint: str = "") -> Iterator[None]:
    """Turn an error of one of these kinds into a :class:`UserError` with the same text, after ``what`` and a colon.

    Users must understand the text.
    """
    try:
        yield
    except kinds as error:
        raise UserError(f"{what}: {error}" if what else str(error), where=where, hint=hint) from None


LONGEST = 200
"""Largest number of characters of a user's value that a message shows."""


def shorten(text: str, limit: int = LONGEST) -> str:
    """Return a text, cut to ``limit`` characters for a message."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def short_repr(value: object) -> str:
    """Return the ``repr`` of a value, cut to ``LONGEST`` characters for a message."""
    return shorten(repr(value))


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """Return the type and message of an error as one line of at most ``limit`` characters."""
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}" if str(error).strip() else type(error).__name__
    return shorten(" ".join(error.split()), limit)


def _natural(name: str) -> tuple[int, str]:
    """Return a sort key by which whole numbers come first, in the order of their values, and then all other names."""
    return (int(name), "") if name.isdecimal() and len(name) < 20 else (sys.maxsize, name)


def unknown_name(kind: str, name: object, known: Iterable[str], *, where: str = "", otherwise: str = "") -> UserError:
    """Return the error for a name that is not in ``known``, with the nearest known names as a hint.

    ``otherwise``: a line that is added to the hint if no known name is near.
    """
    names = sorted(known, key=_natural)
    folded = {each.casefold(): each for each in names}
    near = [folded[each] for each in difflib.get_close_matches(shorten(str(name)).casefold(), folded, n=3, cutoff=0.5)]
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    elif names:
        hint = f"known: {', '.join(names[:12])}" + f", ... ({len(names)} in all)" * (len(names) > 12)
    else:
        hint = "none are known"
    if otherwise and not near:
        hint += f"\n  {otherwise}"
    return UserError(f"unknown {kind} {short_repr(str(name))}", where=where, hint=hint)


@contextmanager
def hub_explained(where: str, name: str = "", licence: str = "") -> Iterator[None]:
    """Turn an error of ``huggingface_hub`` into a :class:`UserError`. Any other error stays as it is.

    ``name``, ``licence``: what is fetched, and its terms, for the message.
    """
    try:
        yield
    except Exception as error:
        if not (problem := _hub_problem(error)):
            raise
        what, hint = problem
        hint += f"\n  licence: {licence}" * bool(licence)
        raise UserError(f"{name}: {what}" if name else what, where=where, hint=hint) from error


def _hub_problem(error: Exception) -> tuple[str, str] | None:
    """Return what is wrong and a hint for an error of ``huggingface_hub``; ``None`` for any other error."""
    from huggingface_hub import errors as hub

    if isinstance(error, hub.GatedRepoError):
        return "the repository is gated", "agree to the terms on the repository's page, then run: hf auth login"
    if isinstance(error, hub.RevisionNotFoundError):
        return "the repository has no such revision", ""
    if isinstance(error, hub.RepositoryNotFoundError | hub.HFValidationError):
        return "there is no such repository, or it needs a token", "hf auth login"
    if isinstance(error, hub.OfflineModeIsEnabled):
        return "cannot be fetched: HF_HUB_OFFLINE is set", "unset it for this command"
    # If the network is down, huggingface_hub raises the errors of its HTTP library, which differs between versions.
    of_http = type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "requests", "urllib3")
    of_hub = hub.HfHubHTTPError | hub.LocalEntryNotFoundError
    if of_http or isinstance(error, of_hub | ConnectionError | TimeoutError):
        return f"cannot be fetched: {error}", "run the same command again to continue"
    return None
