"""The benchmark of training steps: every candidate takes a step."""

import importlib
from pathlib import Path

import pytest
import torch

from bolt.clip.tower_shape import TowerShape

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHAPE = TowerShape(32, 16, 256, 1, 4, 1024, 512, "quick_gelu")
"""As small as sixteen bases of twelve directions each allow."""


def test_every_candidate_takes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """SVF, LoRA-XS and VeRA once called a function with an argument that it no longer had."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    methods, step = importlib.import_module("methods"), importlib.import_module("step")
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 100, (32,))
    trained = {}
    for name, candidate in methods.CANDIDATES.items():
        ready = candidate(step.random_tower(SHAPE, "cpu"))
        forward, tensors = ready.begin()
        before = [tensor.detach().clone() for tensor in tensors]
        step.make_step(forward, tensors, images, labels, ready.update)()
        if ready.update:
            assert any(not torch.equal(a, b) for a, b in zip(before, tensors, strict=True)), name
        trained[name] = sum(tensor.numel() for tensor in tensors)
    assert trained["atlas"] < trained["bolt"] < trained["lora"] < trained["full_finetune"]
