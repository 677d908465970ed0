"""The last state of a training that is under way, so that one that was killed goes on from there.

It lies beside the artifact it will become, as ``<address>/unfinished.safetensors``: tensors as such, everything else
of the state as JSON in the file's header, with the artifact's identity and a checksum of it all. Of several builders
of one artifact each replaces the file whole, and all would write the same states, so any of them may go on from any.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.store.files import Files

if TYPE_CHECKING:
    from torch import Tensor

SNAPSHOT_FILE = "unfinished.safetensors"

logger = logging.getLogger(__name__)


class Snapshots:
    """Where the builder of one artifact leaves its state, in any store.

    Args:
        files: the store's files.
        address: the artifact's folder.
        identity: the artifact's identity as canonical JSON; a state of anything else is not taken up.
    """

    def __init__(self, files: Files, address: str, identity: str) -> None:
        self._files, self._address, self._identity = files, address, identity
        self._kept = time.monotonic()

    @property
    def _name(self) -> str:
        return f"{self._address}/{SNAPSHOT_FILE}"

    def save_if_due(self, state: Callable[[], Any], seconds: float) -> None:
        """Keep the state unless the last one was kept, or the building began, less than so many seconds ago.

        The state is made of tensors, numbers, texts, ``None``, lists, tuples and dictionaries. That it could not be
        kept (a full disk) is logged and does not end the training.
        """
        if time.monotonic() - self._kept < seconds:
            return
        try:
            self._write(state())
        except OSError as error:
            logger.warning("%s goes on, but its state could not be kept: %s", self._address, error)
        self._kept = time.monotonic()

    def load(self) -> Any | None:
        """The state that was kept last, tensors on the CPU; ``None`` without one, or one that is not whole."""
        from safetensors import SafetensorError, safe_open

        with tempfile.TemporaryDirectory(prefix="bolt-") as scratch:
            try:
                path = self._files.local_path(self._name) if self._files.is_local else Path(scratch, SNAPSHOT_FILE)
                if not self._files.is_local:
                    self._files.download(self._name, path)
                with safe_open(path, "pt") as stored:
                    header = stored.metadata()
                    if header["identity"] != self._identity:
                        return None
                    tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
                if header["sha256"] != _checksum(header["state"], tensors):
                    return None
                return _unpacked(json.loads(header["state"]), tensors)
            except (OSError, SafetensorError, KeyError, TypeError, ValueError):
                return None

    def remove(self) -> None:
        """Remove the state, and what writers that were killed left of theirs."""
        if not self._files.is_local:
            self._files.remove(self._name)
            return
        for path in self._files.local_path(self._address).glob(f"*{SNAPSHOT_FILE}*"):
            path.unlink(missing_ok=True)

    def _write(self, state: Any) -> None:
        from bolt.clip.tensor_files import save_tensors

        tensors: dict[str, Tensor] = {}
        packed = json.dumps(_packed(state, tensors))
        header = {"identity": self._identity, "state": packed, "sha256": _checksum(packed, tensors)}
        if self._files.is_local:
            path = self._files.local_path(f"{self._address}/.{SNAPSHOT_FILE}.{uuid.uuid4().hex[:8]}.part")
            try:
                save_tensors(tensors, path, header)
                os.replace(path, self._files.local_path(self._name))
            finally:
                path.unlink(missing_ok=True)
            return
        with tempfile.TemporaryDirectory(prefix="bolt-") as scratch:
            save_tensors(tensors, Path(scratch, SNAPSHOT_FILE), header)
            self._files.upload(Path(scratch, SNAPSHOT_FILE), self._name)


def _checksum(packed: str, tensors: Mapping[str, Tensor]) -> str:
    """Of a state as it is written: a bit that changed in it would change the model, and nothing else would tell."""
    import torch

    digest = hashlib.sha256(packed.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The state as JSON types, with its tensors taken out. Raises ``TypeError`` for anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_packed(key, tensors), _packed(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_packed(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a state cannot hold {type(value).__name__}")


def _unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_unpacked(key, tensors): _unpacked(item, tensors) for key, item in content}
    items = [_unpacked(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
