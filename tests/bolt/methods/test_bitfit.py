"""BitFit: the biases of keys, and the official code's numbers of the optimiser."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.bitfit import BitFitSettings
from bolt.training.loop import fit
from tests.helpers.adapting import adapt
from tests.helpers.towers import make_task, weights_of
from tests.helpers.waves import wave


def test_a_bias_of_the_keys_has_no_effect(backbone: Backbone) -> None:
    adapted = adapt("bitfit", make_task(backbone), epochs=4, biases=("attention_in",))
    name = "transformer.resblocks.0.attn.in_proj_bias"
    moved = weights_of(adapted)[name] - backbone.tower.state_dict_open_clip()[name]
    query, key, value = moved.abs().chunk(3)
    assert key.max() < 0.2 * min(query.max(), value.max())


class SmallNetwork(nn.Module):
    """out(LN_post(x + proj(tanh(fc(LN_1(x)))))), in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_post = nn.LayerNorm(5), nn.LayerNorm(5)
        self.fc, self.proj, self.out = nn.Linear(5, 7), nn.Linear(7, 5), nn.Linear(5, 4, bias=False)
        self.double()
        with torch.no_grad():
            self.fc.weight.copy_(0.5 * wave(7, 5, 0.9, 1.4, 0.2))
            self.fc.bias.copy_(0.1 * wave(1, 7, 1, 0.8, 0.3)[0])
            self.proj.weight.copy_(0.6 * wave(5, 7, 1.2, 0.7, 0.4))
            self.proj.bias.copy_(0.1 * wave(1, 5, 1, 0.5, 0.6)[0])
            self.out.weight.copy_(0.7 * wave(4, 5, 0.6, 1.1, 0.9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.out(self.ln_post(x + self.proj(torch.tanh(self.fc(self.ln_1(x))))))
        return features


def test_training_gives_the_official_numbers() -> None:
    """Losses and biases of 100 steps of AdamW with the official optimiser's numbers."""
    network, x = SmallNetwork(), wave(4, 5, 0.7, 1.3, 0.2)
    head = F.normalize(0.3 * wave(3, 4, 1.1, 0.9, 0.5) + 0.5, dim=-1)
    start = network(x)[0].detach()
    torch.testing.assert_close(
        start, torch.tensor([2.230354, -1.329097, -0.654045, -0.256451]).double(), rtol=0, atol=1e-5
    )
    biases = [tensor for name, tensor in network.named_parameters() if name.endswith("bias")]
    network.requires_grad_(False)
    for bias in biases:
        bias.requires_grad_()

    def logits() -> torch.Tensor:
        return 100 * F.normalize(network(x), dim=-1) @ head.T

    recipe = BitFitSettings(epochs=100, batch_size=4, schedule="constant", warmup_fraction=0.0)
    labels = torch.tensor([0, 1, 2, 0])
    curve = fit(biases, lambda epoch, rows: F.cross_entropy(logits(), labels), lambda epoch: torch.arange(4), recipe)
    losses = [curve[step - 1]["train_loss"] for step in (1, 10, 100)]
    assert losses == pytest.approx([19.534866, 19.270575, 16.450497], abs=1e-4)
    expected = [0.106524, 0.087777, 0.111250, -0.100452, 0.093265]
    assert network.ln_1.bias.tolist() == pytest.approx(expected, abs=1e-4)
    assert logits()[0].tolist() == pytest.approx([9.15983, 40.12945, 39.00594], abs=1e-3)
