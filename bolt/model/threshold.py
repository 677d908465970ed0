"""Finds the lowest score above which predictions reach a wanted accuracy, from predictions on held-out images.

Predictions with low scores are often wrong, so leaving them to a person raises the accuracy of the other predictions.
It would be too optimistic to take the lowest threshold above which the wanted share of held-out images is correct:
among many thresholds, some reach the share by luck. Instead, the thresholds are tested in a fixed order, from the
highest score down, until one fails. Each test asks whether the accuracy above the threshold may be lower than wanted
(exact binomial test, level 5 %). With a probability of 95 %, no threshold that passes is too low (fixed-sequence
testing: Bauer, 1991, "Multiple testing in clinical trials"; for predictors, Angelopoulos et al., 2021, "Learn then
test").
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

LEVEL = 0.05
"""Significance level of the test that a threshold has to pass."""

DEPENDENT = 1.4
"""Number of held-out images that count as one independent image. Held-out predictions are not independent: the models
of the folds share most of their training images, and the predictions are those of the best of several methods. The
number was chosen on pictures that the demo draws; ``benchmarks/promise.py`` checks it on newly drawn pictures."""

NOTE = "held_out"
"""Key of the held-out predictions' scores in a model's notes, see :func:`held_out_note`."""


class NoThreshold(ValueError):
    """No threshold passes the test for the wanted accuracy, or the model has no held-out predictions."""


def held_out_note(scores: Iterable[float], correct: Iterable[bool], groups: int | None = None) -> dict[str, Any]:
    """Return the entry ``NOTE`` of a model's notes.

    The entry has the scores of the correct held-out predictions, and those of the wrong ones. ``groups``: the
    number of groups of images that are independent of each other, such as series; by default, that of the images.
    """
    pairs = [(float(score), bool(right)) for score, right in zip(scores, correct, strict=True)]
    note: dict[str, Any] = {name: [score for score, right in pairs if right is kind] for name, kind in _KINDS.items()}
    return note | ({} if groups in (None, len(pairs)) else {_GROUPS: groups})


_KINDS = {"correct": True, "wrong": False}
_GROUPS = "groups"


@dataclass(frozen=True)
class Threshold:
    """A threshold, and the accuracy of the held-out predictions that reach it.

    Attributes:
        score: the least score of a prediction that is accepted.
        images: number of held-out images whose predictions reach this score.
        correct: number of correct predictions among them.
        dependent: number of held-out images that count as one independent image.
    """

    score: float
    images: int
    correct: int
    dependent: float = DEPENDENT

    @property
    def accuracy(self) -> float:
        """Accuracy of the held-out predictions that reach the threshold, per cent."""
        return 100 * self.correct / self.images

    def interval(self, images: int) -> tuple[float, float]:
        """Return the 95 % prediction interval of the accuracy on new images whose predictions are accepted, per cent.

        The interval allows for chance in the held-out images and in the new images (Thatcher, 1964, "Relationships
        between Bayesian and confidence limits for predictions"). With more new images, it comes closer to Clopper
        and Pearson's interval.

        ``images``: number of the new images, at least 1.
        """
        from scipy.stats import betabinom

        correct, wrong = self.correct / self.dependent, (self.images - self.correct) / self.dependent
        low = betabinom(images, correct, wrong + 1).ppf(0.025)  # correct > 0, because the threshold has passed the test
        high = betabinom(images, correct + 1, wrong).ppf(0.975) if wrong else images
        return 100 * float(low) / images, 100 * float(high) / images


def choose_threshold(notes: Mapping[str, Any], accuracy: float) -> Threshold:
    """Return the lowest threshold that passes the test for an accuracy of ``accuracy`` per cent.

    Raises ``NoThreshold`` if no threshold passes. The message names the highest accuracy, in whole per cent, for which
    a threshold passes.
    """
    if not (held_out := notes.get(NOTE)):
        raise NoThreshold(
            "the model has no predictions of held-out images: it was made without `adapt`, by an earlier version of "
            "`adapt`, or from classes with a single image"
        )
    try:
        pairs = sorted(((float(s), right) for kind, right in _KINDS.items() for s in held_out[kind]), reverse=True)
        groups = float(held_out.get(_GROUPS, len(pairs)))
        if not 1 <= groups <= len(pairs):
            raise ValueError(groups)
    except (TypeError, KeyError, ValueError):
        raise NoThreshold(f"the model's note {NOTE!r} is damaged") from None
    dependent = DEPENDENT * len(pairs) / groups
    if (found := _lowest(pairs, accuracy, dependent)) is None:
        lower = range(math.ceil(accuracy) - 1, 0, -1)
        reached = next((wanted for wanted in lower if _lowest(pairs, wanted, dependent)), 0)
        raise NoThreshold(
            f"the {len(pairs)} held-out images{f' in {groups:g} series' * (groups != len(pairs))} "
            f"support no threshold for an accuracy of {accuracy:g} %; "
            + (f"the highest that they support is --accuracy {reached}" if reached else "they support no accuracy")
        )
    return found


def _lowest(pairs: list[tuple[float, bool]], accuracy: float, dependent: float) -> Threshold | None:
    """Test thresholds from the highest score down until one fails; return the last that passes, or ``None``.

    Thresholds that too few images reach are not tested: they would fail even if all predictions were correct.
    """
    from scipy.special import betainc

    wanted, found = accuracy / 100, None
    correct = [0, *accumulate(right for _, right in pairs)]
    for images in range(math.ceil(dependent * math.log(LEVEL) / math.log(wanted)), len(pairs) + 1):
        last = pairs[images - 1][0]
        if images < len(pairs) and pairs[images][0] == last:
            continue  # a threshold accepts all images with equal scores
        right, wrong = correct[images] / dependent, (images - correct[images]) / dependent
        # betainc is the binomial probability of at least this many correct images, also for fractions of images.
        if not right or betainc(right, wrong + 1, wanted) > LEVEL:
            break
        found = Threshold(last if images < len(pairs) else 0.0, images, correct[images], dependent)
    return found
