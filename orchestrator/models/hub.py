"""Fetch a checkpoint from the Hugging Face hub (``sources adopt hf:...``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bolt.clip.checkpoint_files import FOLDER_WEIGHTS, UnreadableCheckpoint, checkpoint_files
from orchestrator.util.errors import UserError
from orchestrator.util.hub_errors import explain_hub_error

HUB = "hf:"
"""Prefix of an address on the hub: ``hf:owner/name[@revision]``."""


def fetch_checkpoint(address: str, folder: Path) -> tuple[Path, str]:
    """Fetch a repository's weights and configuration. An interrupted download continues with the same call.

    Args:
        address: ``owner/name``, or ``owner/name@revision``.
        folder: parent of the repository's own folder.

    Returns:
        The file of weights (the folder, if they are in parts), and its address ``hf:owner/name@commit``.

    Raises:
        UserError: the repository does not exist, is gated, holds no weights, or cannot be reached.
    """
    from huggingface_hub import HfApi, hf_hub_download

    repo, _, revision = address.partition("@")
    where = f"{HUB}{address}"
    try:
        info = HfApi().model_info(repo, revision=revision or None)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        # One folder per commit, so that adopting a new commit does not change what was adopted before.
        home = folder / f"{repo.replace('/', '--')}-{(info.sha or 'main')[:8]}"
        for name in _wanted(names, where):
            hf_hub_download(repo, name, revision=info.sha, local_dir=home)
    except Exception as error:
        raise explain_hub_error(error, where) from None
    try:
        files = checkpoint_files(home)
    except UnreadableCheckpoint as error:
        raise UserError(str(error), where=where) from None
    return files[0] if len(files) == 1 else home, f"{HUB}{repo}@{info.sha}"


def _wanted(names: Sequence[str], where: str) -> list[str]:
    """The files to fetch: one set of weights, safetensors if there are any, and the configuration."""
    first = next((name for name in FOLDER_WEIGHTS if name in names), None)
    if first is None:
        raise UserError(f"the repository holds none of {', '.join(FOLDER_WEIGHTS)}", where=where)
    stem = first.removesuffix(".index.json").partition(".")[0]
    parts = [name for name in names if name.startswith(f"{stem}-") and "/" not in name] if "index" in first else []
    return [first, *parts, *(["config.json"] if "config.json" in names else [])]
