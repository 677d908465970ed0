"""Fetches the weights of a backbone once, before any work; cells themselves never use the network."""

from __future__ import annotations

import os
from collections.abc import Callable

from orchestrator.catalog import BackboneEntry, missing_weights
from orchestrator.util.errors import UserError


def fetch_weights(entry: BackboneEntry, status: Callable[[str], None]) -> None:
    """Fetch the pre-trained weights that open_clip lists for a backbone, unless they are in its cache.

    Raises ``UserError`` with what to do if they cannot be fetched, or if a file of the catalog's entry does not exist.
    """
    absent = missing_weights(entry)
    if absent is not None:
        raise absent
    if entry.weights.pretrained is None:
        return
    import open_clip

    status(f"weights of {entry.name}")
    config = open_clip.get_pretrained_cfg(entry.architecture, entry.weights.pretrained)
    try:
        open_clip.download_pretrained(config)
    except Exception as error:  # the hub, HTTP libraries and open_clip raise many kinds
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        offline = "; HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        raise UserError(
            f"the weights {entry.weights.pretrained} of backbone {entry.name} cannot be fetched: {reason}{offline}",
            where="--backbone",
            hint="run the command once where the network reaches huggingface.co, or copy the cache of another machine "
            "(~/.cache/huggingface, ~/.cache/clip)\n"
            "  or add a file of weights: python -m orchestrator backbones add --help; "
            "then --backbone NAME --catalog FILE\n"
            "  or try the command with --backbone tiny-clip, which needs no network; it knows drawings only, so its "
            "accuracy says nothing about CLIP",
        ) from None
