"""Memory that a process has freed goes back to the system before the backward pass of a long step."""

from __future__ import annotations

import platform

import psutil
import pytest
import torch
from torch import Tensor

from bolt.training import captured
from bolt.training.captured import launched_gradient

BLOCK, BLOCKS = 2**17, 800  # numbers of half a MiB, less than glibc maps by itself at first


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has a call for it")
@pytest.mark.parametrize("long", [True, False])
def test_memory_between_what_is_in_use_is_returned_after_a_long_forward_pass(
    long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "LONG_FORWARD", 0.0 if long else 3600.0)
    weight = torch.ones(1, requires_grad=True)

    def loss(epoch: int, rows: Tensor) -> Tensor:
        return (weight * len(rows)).sum()

    torch.ones(2**22).sum()  # 16 MiB, mapped and freed: from now on glibc takes smaller blocks from its heap
    blocks = [torch.ones(BLOCK) for _ in range(BLOCKS)]
    del blocks[::2]
    before = psutil.Process().memory_info().rss
    gradient = launched_gradient(loss)
    assert float(gradient(0, torch.arange(3), 0.5)) == 3
    assert weight.grad is not None
    assert float(weight.grad) == 1.5
    returned = before - psutil.Process().memory_info().rss
    freed = BLOCKS // 2 * BLOCK * 4
    assert returned > freed / 2 if long else returned < freed / 2
    assert len(blocks) == BLOCKS // 2
