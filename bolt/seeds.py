"""Random generators whose seed is a hash of the values that the random numbers depend on.

Code that needs random numbers names these values, as in ``numpy_generator("support", dataset, seed)``. It gets a new
generator, with the same numbers in every process and on every platform. No module of this project uses a global random
generator. (benchopt's ``get_seed`` and DomainBed's ``seed_hash`` do the same.)
"""

import contextlib
import hashlib
import threading
from collections.abc import Iterator

import numpy as np
import torch

_GLOBAL_GENERATORS = threading.RLock()


def keyed_seed(*axes: str | int) -> int:
    """Return a 63-bit seed, a hash of ``axes``: the values that the random numbers depend on.

    Other axes give an independent seed.

    Raises ``TypeError`` for an axis that is neither a string nor an integer. A float or an object can be printed in
    several ways, and a seed must not depend on how a value is printed.
    """
    for axis in axes:
        if isinstance(axis, bool) or not isinstance(axis, (str, int)):
            raise TypeError(f"the axes of a seed are strings and integers, not {axis!r}")
    spelled = "\x1f".join(f"{type(axis).__name__}:{axis}" for axis in axes)
    return int.from_bytes(hashlib.sha256(spelled.encode()).digest()[:8], "big") >> 1


def numpy_generator(*axes: str | int) -> np.random.Generator:
    """Return a NumPy generator seeded by :func:`keyed_seed`."""
    return np.random.Generator(np.random.Philox(key=keyed_seed(*axes)))


def torch_generator(*axes: str | int) -> torch.Generator:
    """Return a CPU torch generator seeded by :func:`keyed_seed`."""
    return torch.Generator().manual_seed(keyed_seed(*axes))


@contextlib.contextmanager
def isolated_torch_rng(*axes: str | int) -> Iterator[None]:
    """Seed torch's global generators with :func:`keyed_seed` inside the ``with`` block, and restore them afterwards.

    Library code that takes no generator needs this: initialisation and dropout in ``torch.nn``. All threads share the
    generators, so one thread at a time is in such a block.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with _GLOBAL_GENERATORS, torch.random.fork_rng(devices=devices):
        torch.manual_seed(keyed_seed(*axes))
        yield
