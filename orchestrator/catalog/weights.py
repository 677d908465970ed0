"""Fetches the pre-trained weights of a backbone before any work. Cells themselves never use the network."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from orchestrator.catalog import BackboneEntry, missing_weights
from orchestrator.util.errors import UserError, shorten


def fetch_weights(entry: BackboneEntry, console: Console, *, where: str = "", instead: str = "") -> None:
    """Fetch the pre-trained weights that open_clip lists for a backbone, unless they are in its cache.

    Args:
        console: shows that weights are being fetched.
        where: the option or file that names the backbone, for the error.
        instead: what the user can do without these weights, for the error.

    Raises ``UserError`` with what to do if they cannot be fetched, or if a file of the catalog's entry does not exist.
    """
    absent = missing_weights(entry)
    if absent is not None:
        raise absent
    if entry.weights.pretrained is None:
        return
    import open_clip

    config = open_clip.get_pretrained_cfg(entry.architecture, entry.weights.pretrained)
    try:
        with console.status(f"fetching the weights of {entry.name}"), _without_hub_warnings():
            open_clip.download_pretrained(config)
    except Exception as error:  # the hub, HTTP libraries and open_clip raise many kinds
        reason = shorten(" ".join(str(_first_cause(error)).split()) or type(error).__name__)
        offline = "; HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        raise UserError(
            f"the weights {entry.weights.pretrained} of backbone {entry.name} cannot be fetched: {reason}{offline}",
            where=where,
            hint="run the command once where the network reaches huggingface.co, or copy the cache of another machine "
            "(~/.cache/huggingface, ~/.cache/clip)\n"
            "  or add a file of weights: python -m orchestrator backbones add --help" + instead,
        ) from None


@contextmanager
def _without_hub_warnings() -> Iterator[None]:
    """Without the line that the hub prints for each of its twelve attempts on a machine without a network."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _first_cause(error: BaseException) -> BaseException:
    """The error that the others were raised for: the connection's, not the hub's sentence about it."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
