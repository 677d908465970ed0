"""Random numbers that depend on a key only."""

import hashlib

import torch
from torch import Tensor


def keyed_seed(*key: str | int) -> int:
    """Return a 63-bit seed: a hash of the key, which holds everything that a draw depends on."""
    text = "/".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class KeyedRandom:
    """A random generator that is seeded by a key. Equal keys give equal draws; no global generator is used."""

    def __init__(self, *key: str | int) -> None:
        self.generator = torch.Generator().manual_seed(keyed_seed(*key))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw float32 values in [low, high)."""
        return low + (high - low) * torch.rand(shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        """Draw float32 standard normal values."""
        return torch.randn(shape, generator=self.generator)

    def pick(self, options: int, *shape: int) -> Tensor:
        """Draw int64 values in [0, options)."""
        return torch.randint(options, shape, generator=self.generator)

    def chance(self, probability: float, *shape: int) -> Tensor:
        """Draw float32 ones with the given probability, otherwise zeros."""
        return (torch.rand(shape, generator=self.generator) < probability).float()

    def order(self, count: int) -> Tensor:
        """Return a permutation of range(count), int64."""
        return torch.randperm(count, generator=self.generator)
