"""2SFS: layer norms, then the classifier, against the numbers of the official code."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.two_stage import TwoStageSettings, normalised_classifier
from bolt.training.loop import fit
from tests.helpers.adapting import adapt, with_looks
from tests.helpers.towers import make_task
from tests.helpers.waves import numbers, wave

close = partial(torch.testing.assert_close, rtol=0, atol=1e-4)
BATCHES = torch.cat([wave(4, 6, 0.7, 1.3, 0.2), wave(4, 6, 0.5, 1.1, 1.7)])
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
HEAD = F.normalize(0.3 * wave(3, 4, 1.1, 0.9, 0.5) + 0.5, dim=-1)


class SmallTower(nn.Module):
    """LN_pre, two blocks x + tanh(W_b LN_b(x)), LN_post and a projection, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_pre, self.ln_post = nn.LayerNorm(6), nn.LayerNorm(6)
        self.ln_0, self.ln_1 = self.norms = [nn.LayerNorm(6), nn.LayerNorm(6)]
        self.double()
        self.weights = [0.5 * wave(6, 6, 0.8 + 0.1 * b, 1.3 - 0.2 * b, 0.2 + b) for b in range(2)]
        self.projection = 0.6 * wave(6, 4, 1.1, 0.7, 0.3)
        for b, norm in enumerate(self.norms):
            norm.weight.data.copy_(1 + 0.2 * wave(1, 6, 1, 0.7, 0.1 + b)[0])
            norm.bias.data.copy_(0.1 * wave(1, 6, 1, 0.9, 0.4 + b)[0])

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_pre(x)
        for weight, norm in zip(self.weights, self.norms, strict=True):
            x = x + torch.tanh(F.linear(norm(x), weight))
        features: Tensor = self.ln_post(x) @ self.projection
        return features


def two_stages(tower: SmallTower, trained: list[Tensor]) -> Tensor:
    """Train both stages on the small tower, 6 and 4 steps; return the trained head."""
    head = HEAD.clone().requires_grad_()
    settings = TwoStageSettings(epochs=5, batch_size=4, learning_rate=2e-3)

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        return F.cross_entropy(normalised_classifier(head, 100.0)(tower(BATCHES[rows])), LABELS[rows])

    for parameters, recipe in zip((trained, [head]), settings.stages, strict=True):
        tower.requires_grad_(False)
        head.requires_grad_(False)
        for tensor in parameters:
            tensor.requires_grad_()
        fit(parameters, loss_of_rows, lambda epoch: torch.arange(8), recipe)
    return head.detach()


def test_the_norms_of_the_blocks_give_the_official_numbers() -> None:
    tower = SmallTower()
    start = tower(BATCHES)[0].detach()
    close(start, numbers(1.474800, 0.637147, 0.355121, 1.213777))
    close(normalised_classifier(HEAD, 100.0)(start), numbers(83.718033, 94.660919, 92.316727))
    head = two_stages(tower, [tensor for norm in tower.norms for tensor in norm.parameters()])
    first, second = tower.norms
    close(first.weight.detach(), numbers(1.025342, 1.138820, 1.198300, 1.168317, 1.049007, 0.912110))
    close(second.bias.detach(), numbers(0.104382, 0.075262, -0.012799, -0.081177, -0.089632, -0.043789))
    feature = tower(BATCHES)[0].detach()
    close(feature, numbers(1.476637, 0.644474, 0.358977, 1.202317))
    close(head[0], numbers(0.484050, 0.587361, 0.543694, 0.364201))
    logits = normalised_classifier(head, 100.0)(feature)
    torch.testing.assert_close(logits, numbers(84.220978, 94.727821, 92.122261), rtol=0, atol=1e-2)


def test_all_norms_give_the_official_numbers() -> None:
    tower = SmallTower()
    two_stages(tower, list(tower.parameters()))
    close(tower.ln_pre.weight.detach(), numbers(1.004459, 0.994221, 0.993575, 1.000713, 0.997338, 1.006713))
    close(tower(BATCHES)[0].detach(), numbers(1.479635, 0.667245, 0.377102, 1.181079))


@pytest.mark.parametrize(
    ("steps", "row"),
    [
        (1, (0.408653, 0.504961, 0.458932, 0.306296)),
        (12, (0.409447, 0.505754, 0.458128, 0.307092)),
        (120, (0.416962, 0.513165, 0.450453, 0.314554)),
    ],
)
def test_the_second_stage_alone_gives_the_official_numbers(steps: int, row: tuple[float, ...]) -> None:
    features = torch.cat([wave(4, 8, 0.7, 1.3, 0.2), wave(2, 8, 0.7, 1.3, 3)]) + 0.8
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    head = F.normalize(0.3 * wave(3, 8, 1.1, 0.9, 0.5) + 0.5, dim=-1).requires_grad_()

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        return F.cross_entropy(normalised_classifier(head, 100.0)(features[rows]), labels[rows])

    rows = torch.arange(4 if steps == 1 else 6)
    _, recipe = TwoStageSettings(epochs=1 + max(1, steps // 2), batch_size=4, first_stage=1e-9).stages
    fit([head], loss_of_rows, lambda epoch: rows, recipe)
    close(head[0, :4].detach(), numbers(*row))


def test_the_second_stage_sees_other_views_and_continues_the_curve(backbone: Backbone) -> None:
    epochs: list[int] = []
    task, looks = with_looks(make_task(backbone, report=lambda epoch, metrics: epochs.append(epoch)))
    adapt("two_stage", task, epochs=5)
    assert [view for view, _ in looks] == [1, 2, 3, 4, 5]
    assert epochs == [0, 1, 2, 3, 4]
