"""Random numbers depend on their axes alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from bolt.seeds import isolated_torch_rng


def test_threads_draw_one_after_the_other() -> None:
    """Two threads that adapted a LoRA at once reseeded each other, and got other bits."""
    inside, drawn = threading.Event(), threading.Event()

    def first() -> Tensor:
        with isolated_torch_rng("first"):
            inside.wait(0.3)
            found = torch.rand(3)
        drawn.set()
        return found

    def second() -> Tensor:
        with isolated_torch_rng("second"):
            inside.set()
            drawn.wait(0.3)
            return torch.rand(3)

    inside.set()
    expected = first(), second()
    inside.clear()
    drawn.clear()
    with ThreadPoolExecutor(2) as pool:
        found = pool.submit(first), pool.submit(second)
        assert all(torch.equal(one.result(), other) for one, other in zip(found, expected, strict=True))
