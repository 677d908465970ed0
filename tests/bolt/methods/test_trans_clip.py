"""TransCLIP against numbers of the official code (MaxZanella/transduction-for-vlms 6a9e8f3)."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.trans_clip import Labelled, TransClipSettings, adapt, nearest_others, transduce
from tests.helpers.towers import make_task
from tests.helpers.waves import close, plane_wave, unit

HEAD = unit(1 + 0.4 * plane_wave(3, 8, 1.1, 0.9, 0.5))
QUERIES = unit(1 + 0.8 * plane_wave(24, 8, 0.37, 1.9, 0.1))
SUPPORT = unit(1 + 0.8 * plane_wave(6, 8, 0.7, 1.3, 0.2))
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def test_the_neighbours_are_the_official_ones() -> None:
    cosines, numbers = nearest_others(QUERIES, 3)
    assert dict(zip(numbers[0].tolist(), cosines[0].tolist(), strict=True)) == pytest.approx(
        {1: 0.985292, 17: 0.999995, 18: 0.984764}, abs=1e-5
    )


def test_the_zero_shot_form_gives_the_official_probabilities() -> None:
    solved = transduce(QUERIES, HEAD, 100.0, TransClipSettings())
    close(solved.z_nC[0], [0.600708, 0.340347, 0.058945])
    close(solved.z_nC[5], [0.066339, 0.678155, 0.255506])
    close(solved.z_nC[11], [0.297961, 0.019763, 0.682276])
    close(solved.z_nC.sum(dim=0), [6.951217, 9.607538, 7.441245])
    close(solved.means_CD[0], [0.263972, 0.488318, 0.326744, 0.206869, 0.445951, 0.411241, 0.194601, 0.369386])
    zero_shot = (100 * QUERIES @ HEAD.T).softmax(dim=-1)
    close(zero_shot[0], [0.516060, 0.375702, 0.108238])
    changed = torch.nonzero(zero_shot.argmax(dim=-1) != solved.z_nC.argmax(dim=-1)).flatten().tolist()
    assert changed == [12]
    assert (zero_shot[12].argmax(), solved.z_nC[12].argmax()) == (0, 2)


def test_the_first_round_is_the_official_one() -> None:
    first = transduce(QUERIES, HEAD, 100.0, TransClipSettings(rounds=1))
    close(first.z_nC[0], [0.578192, 0.349451, 0.072357])
    close(first.z_nC[5], [0.078470, 0.656840, 0.264690])
    close(first.means_CD[0], [0.207715, 0.529836, 0.327831, 0.136322, 0.462153, 0.442987, 0.129548, 0.351377])


def test_the_few_shot_form_gives_the_official_probabilities() -> None:
    """The numbers are from the official code with aligned rows of W and z. Each gamma continues the previous one."""
    solved = None
    for gamma in (0.002, 0.01, 0.02):
        support = Labelled(SUPPORT.double(), F.one_hot(LABELS, 3).double(), 50 * gamma / 6)
        solved = transduce(QUERIES, HEAD, 100.0, TransClipSettings(skip_nearest=True), support, solved)
    close(solved.z_nC[0], [0.410651, 0.456962, 0.132386])


def test_the_support_pulls_its_own_class() -> None:
    """With a large weight, the means are those of the support, and images near a mean get its class."""
    support = Labelled(SUPPORT.double(), F.one_hot(LABELS, 3).double(), 1e6)
    solved = transduce(QUERIES, HEAD, 100.0, TransClipSettings(), support)
    means = F.normalize(torch.stack([SUPPORT[label == LABELS].sum(dim=0) for label in range(3)]), dim=-1)
    torch.testing.assert_close(solved.means_CD.float(), means, rtol=1e-3, atol=1e-4)
    weightless = transduce(QUERIES, HEAD, 100.0, TransClipSettings(), replace(support, weight=0.0))
    assert not torch.allclose(weightless.means_CD.float(), means, atol=1e-2)


def test_a_support_beside_the_test_images_is_used(backbone: Backbone) -> None:
    task, labelled = make_task(backbone, unlabelled=True), make_task(backbone)
    without = adapt(task, TransClipSettings())
    beside = adapt(replace(task, support=labelled.support), TransClipSettings())
    features = task.unlabelled.features()
    assert not torch.allclose(without.classify(features), beside.classify(features), atol=1e-3)
    assert torch.isfinite(beside.classify(features)).all()


def test_adapted_images_get_their_probabilities_and_others_a_score(backbone: Backbone) -> None:
    task = make_task(backbone, unlabelled=True)
    features = task.unlabelled.features()
    adapted = adapt(task, TransClipSettings())
    solved = transduce(F.normalize(features, dim=-1), task.head_CD, task.backbone.logit_scale, TransClipSettings())
    given = adapted.classify(features * 1.7).softmax(dim=-1)
    torch.testing.assert_close(given, solved.z_nC.float(), rtol=1e-4, atol=1e-5)
    others = adapted.classify(features + 0.1 * torch.randn(features.shape, generator=torch.Generator().manual_seed(2)))
    assert torch.isfinite(others).all()


@pytest.mark.parametrize("images", [1, 2, 5])
def test_few_and_identical_images_are_harmless(images: int) -> None:
    for head in (HEAD, HEAD[:1]):
        solved = transduce(QUERIES[:1].repeat(images, 1), head, 100.0, TransClipSettings())
        assert torch.isfinite(solved.z_nC).all()
        torch.testing.assert_close(solved.z_nC.sum(dim=-1), torch.ones(images).double())


def test_a_class_that_no_image_belongs_to_keeps_its_mean() -> None:
    head = torch.cat([HEAD, -HEAD[:1]])
    solved = transduce(QUERIES, head, 1e4, TransClipSettings())
    assert torch.isfinite(solved.means_CD).all()
    assert torch.isfinite(solved.z_nC).all()
