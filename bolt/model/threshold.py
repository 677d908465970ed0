"""The lowest score at which predictions reach a wanted accuracy, by predictions on held-out images.

Few predictions with low scores are right, so leaving these to a person raises the accuracy of the remaining ones. The
threshold comes from images that were predicted while they were held out. The lowest threshold with the wanted share of
correct images would be too low: among many thresholds some reach it by luck. So the thresholds are tested one after the
other, from the highest score down, an order that is fixed beforehand. The first threshold that fails ends the search.
Each test asks whether the accuracy above the threshold may be lower than wanted (exact binomial test, level 5 %). With
probability 95 %, no threshold that passes is too low (fixed-sequence testing: Bauer, 1991, "Multiple testing in
clinical trials"; for predictors, Angelopoulos et al., 2021, "Learn then test").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

LEVEL = 0.05

DEPENDENT = 1.4
"""So many held-out images count as one independent image, because the models of the folds share most of their images,
and because the best of several methods was taken. Chosen on draws of the drawn world; ``benchmarks/promise.py`` has
others."""

NOTE = "held_out"
"""The entry of a model's notes with the scores of its held-out predictions, the correct and the wrong ones."""


class NoThreshold(ValueError):
    """No threshold reaches the accuracy, or the model has no held-out predictions."""


def held_out_note(scores: Iterable[float], correct: Iterable[bool]) -> dict[str, list[float]]:
    """Return the entry ``NOTE`` of a model's notes: the scores of held-out predictions, the correct and the wrong."""
    pairs = [(float(score), bool(right)) for score, right in zip(scores, correct, strict=True)]
    return {name: [score for score, right in pairs if right is kind] for name, kind in _KINDS.items()}


_KINDS = {"correct": True, "wrong": False}


@dataclass(frozen=True)
class Threshold:
    """A threshold and how often it was right.

    Attributes:
        score: predictions with at least this score are taken.
        images, correct: held-out images with at least this score, and how many of them were predicted correctly.
    """

    score: float
    images: int
    correct: int

    @property
    def accuracy(self) -> float:
        """Accuracy of the held-out predictions that were taken, per cent."""
        return 100 * self.correct / self.images

    def interval(self, images: int) -> tuple[float, float]:
        """95 % prediction interval of the accuracy of ``images`` (at least 1) new ones that are taken, per cent.

        It counts the chance of the held-out images and of the new ones (Thatcher, 1964, "Relationships between
        Bayesian and confidence limits for predictions"); for very many new images it is Clopper and Pearson's interval.
        """
        from scipy.stats import betabinom

        correct, wrong = self.correct / DEPENDENT, (self.images - self.correct) / DEPENDENT
        low = betabinom(images, correct, wrong + 1).ppf(0.025)  # not 0 correct: the threshold was tested
        high = betabinom(images, correct + 1, wrong).ppf(0.975) if wrong else images
        return 100 * float(low) / images, 100 * float(high) / images


def choose_threshold(notes: Mapping[str, Any], accuracy: float) -> Threshold:
    """Return the lowest threshold that passes the test for an accuracy of ``accuracy`` per cent.

    Raises ``NoThreshold``, with the highest accuracy that can be had.
    """
    held_out = notes.get(NOTE)
    if not held_out:
        raise NoThreshold(
            "the model does not know how its held-out images were predicted: it was not made by `adapt`, by an earlier "
            "version of it, or from classes with a single image"
        )
    try:
        pairs = sorted(((float(s), right) for kind, right in _KINDS.items() for s in held_out[kind]), reverse=True)
    except (TypeError, KeyError, ValueError):
        raise NoThreshold(f"the model's note {NOTE!r} is damaged") from None
    found = _lowest(pairs, accuracy)
    if found is None:
        reached = next((wanted for wanted in range(math.ceil(accuracy) - 1, 0, -1) if _lowest(pairs, wanted)), 0)
        raise NoThreshold(
            f"the {len(pairs)} held-out images support no threshold for an accuracy of {accuracy:g} %; "
            + (f"the highest that they support is --accuracy {reached}" if reached else "they support none at all")
        )
    return found


def _lowest(pairs: list[tuple[float, bool]], accuracy: float) -> Threshold | None:
    """Test one threshold after the other, from the first that could pass. Return ``None`` if the first one fails."""
    from scipy.special import betainc

    wanted, found = accuracy / 100, None
    correct = [0, *accumulate(right for _, right in pairs)]
    for images in range(math.ceil(DEPENDENT * math.log(LEVEL) / math.log(wanted)), len(pairs) + 1):
        last = pairs[images - 1][0]
        if images < len(pairs) and pairs[images][0] == last:
            continue  # equal scores are taken together
        right, wrong = correct[images] / DEPENDENT, (images - correct[images]) / DEPENDENT
        if (
            not right or betainc(right, wrong + 1, wanted) > LEVEL
        ):  # the binomial distribution, also for fractions of images
            break
        found = Threshold(last if images < len(pairs) else 0.0, images, correct[images])
    return found
