"""Suspect labels by held-out probabilities, in made-up data whose wrong labels are known."""

import numpy as np
import pytest

from orchestrator.adapt.suspects import suspect_labels


@pytest.mark.parametrize("classes", [2, 10])
def test_most_planted_wrong_labels_are_found_and_no_right_ones(classes: int) -> None:
    draw = np.random.default_rng(0)
    true_N = np.arange(400) % classes
    logits_NC = draw.normal(size=(400, classes)) + 4 * np.eye(classes)[true_N]
    probabilities_NC = (np.exp(logits_NC) / np.exp(logits_NC).sum(axis=1, keepdims=True)).astype(np.float32)
    wrong = draw.choice(400, 20, replace=False)
    labels_N = true_N.copy()
    labels_N[wrong] = (true_N[wrong] + 1) % classes
    found = suspect_labels(probabilities_NC, labels_N)
    assert len(found) >= 14
    assert {row for row, _ in found} <= set(wrong.tolist())
    assert all(likely == true_N[row] for row, likely in found)


def test_confident_right_labels_are_not_suspect() -> None:
    labels_N = np.arange(30) % 3
    probabilities_NC = (0.7 * np.eye(3)[labels_N] + 0.1).astype(np.float32)
    assert suspect_labels(probabilities_NC, labels_N) == []


def test_a_class_that_is_never_sure_needs_less_to_be_likely() -> None:
    """Class 1 has a mean probability of 0.4 for its own images, so 0.45 makes an image of class 0 one of it."""
    probabilities_NC = np.array([[0.9, 0.1], [0.9, 0.1], [0.45, 0.55], [0.6, 0.4], [0.6, 0.4]], np.float32)
    assert suspect_labels(probabilities_NC, np.array([0, 0, 0, 1, 1])) == [(2, 1)]
