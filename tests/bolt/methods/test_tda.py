"""TDA against numbers of the official code (kdiAAA/TDA e697fb0)."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.tda import Caches, LowestEntropies, TdaSettings, adapt
from bolt.task.classifiers import CacheClassifier
from tests.helpers.towers import make_task
from tests.helpers.waves import plane_wave, unit

HEAD = unit(1 + 0.4 * plane_wave(4, 8, 1.1, 0.9, 0.5))
STREAM = unit(1 + 0.8 * plane_wave(20, 8, 0.37, 1.9, 0.1))


def send(settings: TdaSettings, stream: Tensor = STREAM, head: Tensor = HEAD) -> tuple[Caches, Tensor]:
    """Return the caches after the stream, and the logits that each image got when it came."""
    caches, logits = Caches(head, 100.0, settings), []
    for image in stream:
        caches.insert(image)
        logits.append(caches.classifier(image[None])[0])
    return caches, torch.stack(logits)


def test_online_logits_are_the_official_ones() -> None:
    _, logits = send(TdaSettings())
    expected = {
        0: [89.11719, 86.79975, 85.55528, 83.42250],
        1: [89.45320, 89.95325, 86.37011, 83.28648],
        10: [79.61109, 78.55565, 82.07092, 89.08445],
        19: [91.69187, 94.45453, 88.06694, 83.64391],
    }
    for image, row in expected.items():
        torch.testing.assert_close(logits[image], torch.tensor(row), rtol=1e-5, atol=1e-3)
    text = 100 * STREAM @ HEAD.T
    torch.testing.assert_close(text[19], torch.tensor([87.88411, 88.80816, 87.14468, 83.25776]), rtol=1e-5, atol=1e-3)
    changed = {image for image in range(20) if logits[image].argmax() != text[image].argmax()}
    assert changed == {6, 8, 18}
    assert text.argmax(dim=-1).tolist() == [0, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 1, 1]


def test_the_positive_cache_alone_gives_the_official_logits() -> None:
    _, logits = send(TdaSettings(capacity_negative=0))
    expected = torch.tensor([92.00296, 94.68708, 88.45369, 83.79811])
    torch.testing.assert_close(logits[19], expected, rtol=1e-5, atol=1e-3)


def test_the_caches_hold_the_official_entropies() -> None:
    caches, _ = send(TdaSettings())
    positive = {label: sorted(found) for label, found in caches.positive.entropies.items()}
    assert positive[0] == pytest.approx([1.005484, 1.005729, 1.028127], rel=1e-4)
    assert positive[1] == pytest.approx([0.878250, 0.906299, 0.907319], rel=1e-4)
    assert positive[2] == pytest.approx([1.121085, 1.202880], rel=1e-4)
    assert positive[3] == pytest.approx([0.172573, 0.216884, 0.242116], rel=1e-4)
    negative = {label: sorted(found) for label, found in caches.negative.entropies.items() if found}
    assert negative.keys() == {1, 3}
    assert negative[1] == pytest.approx([0.878250, 0.906299], rel=1e-4)
    assert negative[3] == pytest.approx([0.442535, 0.499431], rel=1e-4)
    masks = -caches.final().values_NC[-4:] / 0.117
    assert sorted(masks.round().int().tolist()) == [[0, 0, 1, 1], [1, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]]


def test_the_final_classifier_has_no_free_rows() -> None:
    caches, _ = send(TdaSettings())
    final = caches.final()
    assert len(final.keys_ND) == 11 + 4
    torch.testing.assert_close(final(STREAM), caches.classifier(STREAM))


def test_a_full_class_takes_strictly_lower_entropies_only() -> None:
    places = LowestEntropies(2)
    assert [places.insert(0, entropy) for entropy in (3.0, 2.0, 3.0, 1.0, 2.0)] == [0, 1, None, 0, None]
    assert places.insert(1, 9.0) == 0
    assert LowestEntropies(0).insert(0, 1.0) is None


def test_one_class_and_identical_images_are_harmless() -> None:
    same = STREAM[:1].repeat(6, 1)
    for head in (HEAD, HEAD[:1]):
        caches, logits = send(TdaSettings(), same, head)
        assert torch.isfinite(logits).all()
        assert len(caches.positive.entropies[0]) == 3
    assert not caches.negative.entropies, "a single class has no uncertain images"


def test_images_come_in_the_tasks_order(backbone: Backbone) -> None:
    """The logits are those of the stream in the task's order. ``details`` have the share of equal predictions."""
    task = make_task(backbone, unlabelled=True)
    adapted = adapt(task, TdaSettings())
    order = task.unlabelled.order("tda", 0, 30)
    features = F.normalize(task.unlabelled.features(), dim=-1)
    caches = Caches(task.head_CD, task.backbone.logit_scale, TdaSettings())
    for image in order.tolist():
        caches.insert(features[image])
    assert isinstance(adapted.classify, CacheClassifier)
    torch.testing.assert_close(adapted.classify(features), caches.final()(features))
    assert 0 <= float(adapted.details["agreement_with_final"]) <= 100
