"""Seeds keyed by what they depend on.

No module of this project touches a global random generator. Whoever needs randomness names the axes it
depends on - ``generator("support", dataset, seed)`` - and gets a generator of its own, the same in every process
and on every platform. (The idea is benchopt's ``get_seed`` and DomainBed's ``seed_hash``.)
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch


def keyed_seed(*axes: str | int) -> int:
    """A 63-bit seed from the named axes; different axes give independent seeds.

    Raises ``TypeError`` for an axis that is neither text nor a whole number: a float or an object has no one
    canonical spelling, and a seed must not depend on how something prints.
    """
    for axis in axes:
        if isinstance(axis, bool) or not isinstance(axis, (str, int)):
            raise TypeError(f"a seed is keyed by text and whole numbers, not by {axis!r}")
    spelled = "\x1f".join(f"{type(axis).__name__}:{axis}" for axis in axes)
    return int.from_bytes(hashlib.sha256(spelled.encode()).digest()[:8], "big") >> 1


def numpy_generator(*axes: str | int) -> np.random.Generator:
    """A NumPy generator seeded by :func:`keyed_seed`."""
    return np.random.Generator(np.random.Philox(key=keyed_seed(*axes)))


def torch_generator(*axes: str | int) -> torch.Generator:
    """A CPU torch generator seeded by :func:`keyed_seed`."""
    return torch.Generator().manual_seed(keyed_seed(*axes))


@contextlib.contextmanager
def isolated_torch_rng(*axes: str | int) -> Iterator[None]:
    """The global torch generators keyed by the axes inside, and as they were before outside.

    For libraries that draw from them and take no generator (initialisation and dropout in ``peft`` and ``nn``).
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(keyed_seed(*axes))
        yield
