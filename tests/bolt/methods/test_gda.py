"""GDA against numbers of the official code (mrflogs/ICLR24 560fe21), and its choice of alpha."""

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.methods.gda import GdaSettings, adapt, best_alpha, fit_gaussians, leave_one_out_logits
from tests.helpers.frozen_tasks import clip_like, frozen_task, with_features
from tests.helpers.waves import close, plane_wave, unit

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
VIEWS = [plane_wave(6, 8, 0.7, 1.3, 0.2 + 0.11 * view) + 0.8 for view in range(3)]
SAMPLES = torch.stack([unit(view) for view in VIEWS])
HEAD = unit(plane_wave(3, 8, 1.1, 0.9, 0.5) + 0.5)
QUERIES = unit(plane_wave(4, 8, 0.37, 1.9, 0.1) + 0.8)


def test_means_precision_and_weights_are_the_official_ones() -> None:
    gaussians = fit_gaussians(SAMPLES.flatten(0, 1), LABELS.repeat(3), 3)
    close(
        gaussians.means_CD[0], [0.417385, 0.505061, 0.208424, -0.037952, 0.126874, 0.461432, 0.475594, 0.148612]
    )  # fmt: skip
    close(
        gaussians.precision_DD[0],
        [100.4136, -3.304865, 23.38885, 15.79236, -14.96542, -23.82426, 2.194021, 24.97260],
    )
    close(gaussians.bias(), [-41.34219, -36.68271, -39.86232])
    close(
        gaussians.weight()[0], [36.38004, 35.03164, 31.59550, 31.10557, 34.27960, 36.46763, 34.46419, 31.20433]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("alpha", "logits"),
    [
        (0.1, [59.31494, 60.04592, 52.67658]),
        (1.0, [89.92310, 92.71043, 83.15542]),
        (10.0, [396.0047, 419.3556, 387.9438]),
    ],
)
def test_logits_are_the_official_ones(alpha: float, logits: list[float], backbone: Backbone) -> None:
    task = frozen_task(backbone, lambda view: VIEWS[view - 1].float(), LABELS, HEAD)
    close(adapt(task, GdaSettings(views=3, alpha=alpha)).classify(QUERIES)[0], logits)


def test_the_smallest_of_equal_alphas_is_taken() -> None:
    """The official search on these queries finds 50 % up to alpha = 10 and 25 % at 100."""
    gaussians = fit_gaussians(SAMPLES.flatten(0, 1), LABELS.repeat(3), 3)
    gaussian_logits = QUERIES.double() @ gaussians.weight().T + gaussians.bias()
    assert best_alpha(100 * QUERIES @ HEAD.T, [gaussian_logits], torch.tensor([0, 1, 2, 1])) == 1e-4


def test_one_view_of_one_image_is_the_text_head(backbone: Backbone) -> None:
    """Without variance, the official precision is zero, and the bias is -log 3 for every class."""
    gaussians = fit_gaussians(SAMPLES[0, ::2], torch.arange(3), 3)
    assert not gaussians.precision_DD.any()
    close(gaussians.bias(), [-1.098612] * 3)
    problem = clip_like(backbone, shots=1)
    assert problem.accuracy(adapt(problem.task, GdaSettings(views=1))) == problem.zero_shot()


def test_identical_images_are_the_text_head(backbone: Backbone) -> None:
    """Rounding errors around the class mean are no variance."""
    problem = clip_like(backbone, shots=4)
    same = with_features(problem.task, lambda view, features: features[:10].repeat(4, 1) * (1 + 1e-7 * view))
    task = with_features(same, lambda view, features: problem.task.support.features(0)[:10].repeat(4, 1))
    assert problem.accuracy(adapt(task, GdaSettings(views=3))) == problem.zero_shot()


@pytest.mark.parametrize("keep", [False, True])
def test_leave_one_out_is_a_fit_without_the_image(keep: bool) -> None:
    """An image's logits are those of Gaussians that are fitted without its views."""
    queries = unit(plane_wave(6, 8, 0.7, 1.3, 0.7) + 0.8)
    fitted = fit_gaussians(SAMPLES.flatten(0, 1), LABELS.repeat(3), 3)
    logits = leave_one_out_logits(fitted, SAMPLES, queries, LABELS, keep_precision=keep)
    for row in range(6):
        rest = [other for other in range(6) if other != row]
        without = fit_gaussians(SAMPLES[:, rest].flatten(0, 1), LABELS[rest].repeat(3), 3)
        held = type(fitted)(without.means_CD, fitted.precision_DD) if keep else without
        torch.testing.assert_close(logits[row], queries[row].double() @ held.weight().T + held.bias())


def test_an_image_outside_the_precision_chooses_a_smaller_alpha(backbone: Backbone) -> None:
    """Images have noise of their own. If P is fitted with the image, the chosen alpha hides the text."""
    problem = clip_like(backbone, shots=4, signal=0.1, text_error=0.05)
    assert problem.accuracy(adapt(problem.task, GdaSettings())) >= problem.zero_shot() - 1


def test_alpha_is_chosen_on_the_support_and_named(backbone: Backbone) -> None:
    assert adapt(clip_like(backbone, shots=4).task, GdaSettings()).details["search"] == "leave one out"


def test_with_one_image_the_gaussian_has_a_share_of_the_texts_spread(backbone: Backbone) -> None:
    """For any number of views, the added logits have a tenth of the text's standard deviation."""
    task = clip_like(backbone, shots=1).task
    text_NC = adapt(task, GdaSettings(alpha=0.0)).classify(task.support.features(0))
    for views in (3, 10):
        added_NC = adapt(task, GdaSettings(views=views)).classify(task.support.features(0)) - text_NC
        ratio = added_NC.std(dim=1, correction=0).mean() / text_NC.std(dim=1, correction=0).mean()
        assert float(ratio) == pytest.approx(0.1, rel=1e-3)
