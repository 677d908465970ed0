"""LoRA and DoRA on a linear module, against ``peft``: the same bits from the same seed."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from bolt.methods.common.adapters import AdapterSettings, LowRankLinear, attach_adapters, merged_weight
from bolt.seeds import isolated_torch_rng
from tests.helpers.waves import plane_wave

PATHS = ["2", "0"]
EITHER = pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])


def network() -> nn.Sequential:
    """Two linear modules with an activation between them; the second has no bias."""
    layers = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 16, bias=False))
    with torch.no_grad():
        for phase, tensor in enumerate(layers.parameters()):
            tensor.copy_(0.3 * plane_wave(len(tensor), tensor.numel() // len(tensor), 0.9, 0.4, phase).view_as(tensor))
    return layers.train()


def by_peft(settings: AdapterSettings, dora: bool) -> nn.Sequential:
    layers = network()
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        use_rslora=settings.rank_stabilised,
        lora_dropout=settings.dropout,
        use_dora=dora,
        target_modules=PATHS,
    )
    with isolated_torch_rng("lora", "adapters", "test"):
        inject_adapter_in_model(config, layers)
    return layers


def trained(layers: nn.Sequential, half: bool) -> tuple[list[float], list[Tensor]]:
    """Return the losses of five steps of AdamW, and the trained tensors after them."""
    parameters = [tensor for tensor in layers.parameters() if tensor.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=0.01)
    x = plane_wave(12, 24, 0.7, 1.1, 0.3).float()
    losses = []
    for step in range(5):
        with isolated_torch_rng("step", step), torch.autocast("cpu", torch.bfloat16) if half else nullcontext():
            loss = (layers(x).float() - 1).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses, [tensor.detach() for tensor in parameters]


@EITHER
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "settings",
    [AdapterSettings(rank=3), AdapterSettings(rank=2, alpha=1, rank_stabilised=True, dropout=0.25)],
    ids=["plain", "dropout"],
)
def test_training_and_merging_give_pefts_bits(settings: AdapterSettings, dora: bool, half: bool) -> None:
    ours, theirs = network(), by_peft(settings, dora)
    attach_adapters(ours, PATHS, settings, dora, "test")
    (losses, tensors), (expected_losses, expected) = trained(ours, half), trained(theirs, half)
    assert losses == expected_losses
    assert losses[-1] < losses[0]
    assert len(tensors) == len(expected) == (6 if dora else 4)
    assert all(torch.equal(tensor, wanted) for tensor, wanted in zip(tensors, expected, strict=True))
    for path in PATHS:
        layer: Any = copy.deepcopy(theirs.get_submodule(path))
        layer.merge()
        assert torch.equal(merged_weight(ours.get_submodule(path)), layer.get_base_layer().weight)


@EITHER
def test_without_dropout_it_is_the_merged_module(dora: bool) -> None:
    frozen = nn.Linear(8, 6)
    layer = LowRankLinear(frozen, 2, 0.5, dropout=0.5, dora=dora).eval()
    x = plane_wave(5, 8, 0.9, 0.35, 0.25).float()
    assert torch.allclose(layer(x), frozen(x), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        layer.lora_B.add_(1.0)
        plain = nn.functional.linear(x, layer.merged_weight(), frozen.bias)
        assert (plain - frozen(x)).abs().max() > 0.01
        torch.testing.assert_close(layer(x), plain, rtol=1e-5, atol=1e-6)


def test_a_path_without_a_module_is_refused() -> None:
    with pytest.raises(ValueError, match="'3'"):
        attach_adapters(network(), ["0", "3"], AdapterSettings(rank=1), False)
