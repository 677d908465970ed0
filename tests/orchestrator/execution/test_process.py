"""Settings of a worker process."""

from __future__ import annotations

import subprocess
import sys

TRAIN = """
import sys, torch
from orchestrator.execution.process import leave_out_triton
if sys.argv[1] == "without":
    leave_out_triton()
weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
optimiser = torch.optim.AdamW([weight])
for _ in range(3):
    optimiser.zero_grad()
    (weight @ torch.ones(4)).square().sum().backward()
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    optimiser.step()
print(weight.tolist())
"""


def test_training_without_triton_gives_the_same_bits_and_no_warning() -> None:
    runs = [
        subprocess.run([sys.executable, "-W", "error", "-c", TRAIN, word], capture_output=True, text=True, check=True)
        for word in ("with", "without")
    ]
    assert runs[0].stdout == runs[1].stdout != ""
    assert runs[1].stderr == ""
