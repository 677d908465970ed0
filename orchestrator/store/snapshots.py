"""Snapshots of a running training, so that a killed training resumes from its last state.

A snapshot is the file ``unfinished.safetensors`` in the folder of the artifact that is built. The file holds the
tensors of the state. Its header holds the other values of the state as JSON, the artifact's identity and a checksum.
Several builders of one artifact write the same states, and each write replaces the whole file. So a builder may resume
from the snapshot of another builder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.store.files import Files
from orchestrator.util.atomic_files import replacing

if TYPE_CHECKING:
    from torch import Tensor

SNAPSHOT_FILE = "unfinished.safetensors"

logger = logging.getLogger(__name__)


class Snapshots:
    """The snapshot of the training that builds the artifact at ``address``.

    ``identity`` is the artifact's identity as canonical JSON. A stored snapshot with another identity is ignored.
    """

    def __init__(self, files: Files, address: str, identity: str) -> None:
        self._files, self._address, self._identity = files, address, identity
        self._name = f"{address}/{SNAPSHOT_FILE}"
        self._saved = time.monotonic()

    def save_if_due(self, state: Callable[[], Any], seconds: float) -> None:
        """Write a snapshot if the last one was written at least ``seconds`` ago.

        Before the first snapshot, the time counts from the creation of this object.

        The state consists of tensors, numbers, texts, ``None``, lists, tuples and dictionaries. A full disk is logged
        and does not end the training. Raises ``TypeError`` for any other type in the state.
        """
        if time.monotonic() - self._saved < seconds:
            return
        try:
            self._write(state())
        except OSError as error:
            logger.warning("%s continues, but its snapshot could not be written: %s", self._address, error)
        self._saved = time.monotonic()

    def load(self) -> Any | None:
        """Return the state of the last snapshot, with tensors on the CPU; ``None`` without an intact snapshot."""
        from safetensors import SafetensorError, safe_open

        damages = (OSError, SafetensorError, KeyError, TypeError, ValueError)
        with tempfile.TemporaryDirectory(prefix="bolt-") as scratch, suppress(*damages):
            path = self._files.local_path(self._name) if self._files.is_local else Path(scratch, SNAPSHOT_FILE)
            if not self._files.is_local:
                self._files.download(self._name, path)
            with safe_open(path, "pt") as stored:
                header = stored.metadata()
                if header["identity"] == self._identity:
                    tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
                    if header["sha256"] == _checksum(header["state"], tensors):
                        return _unpack(json.loads(header["state"]), tensors)
        return None

    def remove(self) -> None:
        """Remove the snapshot, and the temporary files of writers that were killed."""
        for name in self._files.names(self._address):
            if SNAPSHOT_FILE in name:
                self._files.remove(f"{self._address}/{name}")

    def _write(self, state: Any) -> None:
        from bolt.clip.tensor_files import save_tensors

        tensors: dict[str, Tensor] = {}
        packed = json.dumps(_pack(state, tensors))
        header = {"identity": self._identity, "state": packed, "sha256": _checksum(packed, tensors)}
        if self._files.is_local:
            with replacing(self._files.local_path(self._name)) as path:
                save_tensors(tensors, path, header)
            return
        with tempfile.TemporaryDirectory(prefix="bolt-") as scratch:
            save_tensors(tensors, Path(scratch, SNAPSHOT_FILE), header)
            self._files.upload(Path(scratch, SNAPSHOT_FILE), self._name)


def _checksum(packed: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the checksum of a state. Without it, a changed bit in a snapshot would silently change the model."""
    import torch

    digest = hashlib.sha256(packed.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the state as JSON types, and put its tensors into ``tensors``. Raises ``TypeError`` for other types."""
    import torch

    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_pack(key, tensors), _pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_pack(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a snapshot cannot hold a {type(value).__name__}")


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in content}
    items = [_unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
