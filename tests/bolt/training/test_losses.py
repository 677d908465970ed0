"""The losses: the official numbers of UFM, its empty mask, and float32 under autocast."""

import pytest
import torch

from bolt.training.loop import cross_entropy
from bolt.training.test_time import ufm_loss
from tests.helpers.waves import plane_wave

WEAK = (6 * plane_wave(4, 3, 0.9, 1.7, 0.3)).float()
WEAK[0, 0] = 12
STRONG = (3 * plane_wave(4, 3, 0.4, 2.1, 0.6)).float()
TARGETS = torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("trusted", "expected"),
    [
        ([False, True, False, True], 2.0118258),
        ([False, False, False, True], 1.8518652),
        ([True, True, True, True], 3.2239724),
    ],
)
def test_the_loss_of_the_official_code(trusted: list[bool], expected: float) -> None:
    assert float(ufm_loss(WEAK, STRONG, TARGETS, torch.tensor(trusted))) == pytest.approx(expected, abs=1e-6)


def test_without_a_confident_image_nothing_is_learned() -> None:
    """The official code divides zero by zero here."""
    strong = STRONG.clone().requires_grad_()
    loss = ufm_loss(0.01 * WEAK, strong, TARGETS, torch.zeros(4, dtype=torch.bool))
    loss.backward()
    assert float(loss.detach()) == 0
    assert not strong.grad.any()


def test_the_gradient_reaches_the_strong_view_of_confident_images_alone() -> None:
    weak, strong = WEAK.clone().requires_grad_(), STRONG.clone().requires_grad_()
    ufm_loss(weak, strong, TARGETS, torch.tensor([False, False, False, True])).backward()
    assert weak.grad is None
    assert strong.grad is not None
    assert strong.grad.any(dim=1).tolist() == [True, False, True, True]
    expected = (strong.detach().softmax(dim=1) - WEAK.softmax(dim=1))[2] / 3
    torch.testing.assert_close(strong.grad[2], expected)


def test_weak_logits_of_trusted_images_are_not_read() -> None:
    trusted = torch.tensor([False, True, False, True])
    other = torch.where(trusted[:, None], torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), WEAK)
    assert torch.equal(ufm_loss(WEAK, STRONG, TARGETS, trusted), ufm_loss(other, STRONG, TARGETS, trusted))


def test_a_single_class_is_learned_already() -> None:
    zeros = torch.zeros(4, dtype=torch.long)
    assert float(ufm_loss(WEAK[:, :1], STRONG[:, :1], zeros, zeros.bool())) == 0


def test_nan_logits_are_not_masked_away() -> None:
    nobody = torch.zeros(4, dtype=torch.bool)
    assert torch.isnan(ufm_loss(0.01 * WEAK, STRONG * torch.nan, TARGETS, nobody))
    assert torch.isnan(ufm_loss(WEAK * torch.nan, STRONG, TARGETS, nobody))


def test_losses_are_float32_under_autocast() -> None:
    """bfloat16 has 8 bits: a loss or a confidence computed in it is off in the third digit."""
    weak, strong = WEAK.bfloat16(), STRONG.bfloat16()
    trusted = torch.tensor([False, True, False, True])
    with torch.autocast("cpu", torch.bfloat16):
        losses = cross_entropy(strong, TARGETS), ufm_loss(weak, strong, TARGETS, trusted)
    for loss, expected in zip(
        losses,
        (cross_entropy(strong.double(), TARGETS), ufm_loss(weak.double(), strong.double(), TARGETS, trusted)),
        strict=True,
    ):
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
