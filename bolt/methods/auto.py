"""A choice among methods: adapts with the candidate that classifies held-out images of the support best.

The images of every class are split into folds as evenly as possible. For each fold in turn, every candidate adapts to
all other folds and classifies the images of this fold. The candidate with the most correct images adapts to the whole
support. At a tie, the candidate that comes first in ``candidates`` is chosen.

If a class has a single image, no image can be held out. Then the first candidate is taken without looking at the
images. So ``candidates`` begins with the most trusted method. The preset ``with_sources`` puts BOLT first, which has
the highest mean accuracy at one image per class in the paper's tables. Without sources the linear probe is first,
because it starts at the text head.

A candidate whose training diverges is left out. docs/methods.md says how far the choice is from the best candidate.

Shape legend: N support images, B held-out images.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from bolt.methods.base import Idle, TowerPasses, register
from bolt.methods.common.candidates import Candidate, held_out_logits, parse_candidate, recipes_digest
from bolt.methods.common.cross_validation import NO_HOLD_OUT, fewest_images, stratified_folds
from bolt.task.scoring import NonFiniteLogits
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.training.loop import Diverged
from bolt.util.ranges import EACH_ONCE, NOT_EMPTY, AtLeast2, Checked, Range

FROZEN_CANDIDATES = ("linear_probe", "lp_plus_plus", "tip_adapter", "gda", "zero_shot")
"""Methods that read the frozen tower's features only."""


@dataclass(frozen=True)
class AutoSettings(Checked):
    """The candidates, and the number of folds.

    Attributes:
        candidates: methods, each ``name`` or ``name(setting=value, ...)``; the most trusted first.
        folds: number of folds of the support; fewer if a class has fewer images.
        recipes: digest of the candidates' versions and settings. It is computed when the settings are made, so
            that a cell's identity changes if a candidate's version or default changes.
    """

    candidates: Annotated[tuple[str, ...], NOT_EMPTY, EACH_ONCE] = FROZEN_CANDIDATES
    folds: AtLeast2 = 4
    recipes: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.recipes:
            object.__setattr__(self, "recipes", recipes_digest(self.parsed))

    @property
    def parsed(self) -> tuple[Candidate, ...]:
        """The candidates, parsed from their texts. Raises ``ValueError`` where :func:`parse_candidate` does."""
        return tuple(parse_candidate(text) for text in self.candidates)


def _last_view(settings: AutoSettings) -> int:
    """Return the number of the last support view whose frozen features a candidate reads.

    If no candidate reads frozen features, return 0, the un-augmented view: a candidate that keeps the frozen tower is
    scored on the un-augmented features of the held-out images.
    """
    views = [each.method.support_feature_views(each.settings) for each in settings.parsed]
    return max((view for view in views if view is not None), default=EVALUATION_VIEW)


def _tower_passes(support_size: int, settings: AutoSettings) -> TowerPasses:
    """Return the tower passes of all candidates on all folds, and of the costliest candidate on the whole support."""
    on_all = [each.tower_passes(support_size) for each in settings.parsed]
    if len(on_all) == 1:
        return on_all[0]
    kept = (support_size * (settings.folds - 1)) // settings.folds
    on_folds = [each.tower_passes(kept) for each in settings.parsed]
    scored = support_size * sum(each.method.changes_tower for each in settings.parsed)
    costliest = max(on_all, key=lambda passes: (passes.training, passes.forward))
    return TowerPasses(
        forward=costliest.forward + scored + settings.folds * sum(each.forward for each in on_folds),
        training=costliest.training + settings.folds * sum(each.training for each in on_folds),
        text_training=max(each.text_training for each in on_all)
        + settings.folds * sum(each.text_training for each in on_folds),
    )


_PRESETS: dict[str, dict[str, Sequence[str]]] = {
    "with_lora": {"candidates": (*FROZEN_CANDIDATES, "lora")},
    "with_sources": {"candidates": ("bolt", "bolt_pooled", *FROZEN_CANDIDATES)},
}


@register(
    title="Choice on the support",
    palette=23,
    summary="takes the candidate method that is best on held-out images of the support",
    paper="https://scikit-learn.org/stable/modules/cross_validation.html",
    tracks=frozenset({"fewshot", "ood"}),
    presets=_PRESETS,
    uses_sources=True,
    reads_sources=lambda settings: any(each.uses_sources for each in settings.parsed),
    changes_tower=True,
    source_directions=lambda settings, width, sources: max(
        each.method.source_directions(each.settings, width, sources) for each in settings.parsed
    ),
    support_feature_views=_last_view,
    trains_text=lambda settings: any(each.method.trains_text(each.settings) for each in settings.parsed),
    reads_matrices=lambda settings: any(each.method.needs_matrices(each.settings) for each in settings.parsed),
    tower_passes=_tower_passes,
    idle=(Idle(("folds",), {"candidates": Range("several methods", lambda candidates: len(candidates) > 1)}),),
)
def adapt(task: Task, settings: AutoSettings) -> Adapted:
    """Choose a candidate on held-out images of the support, and adapt to the whole support with it.

    Raises ``ValueError`` if a candidate's version or defaults have changed since the settings were made, and
    ``Diverged`` if the training of every candidate diverges.
    """
    if settings.recipes != recipes_digest(settings.parsed):
        raise ValueError("the code or the defaults of a candidate have changed since these settings were made")
    correct = _correct_images(task, settings)
    tried = [each for each in settings.parsed if each.text in correct or not correct]
    ranked = sorted(tried, key=lambda each: -correct.get(each.text, 0))  # stable: ties go to the first
    details = {key: 100 * correct[text] / len(task.support) for key, text in _detail_keys(settings) if text in correct}
    chosen_by = f"{_folds(task, settings)} folds of the support" if correct else NO_HOLD_OUT
    for candidate in ranked:
        with suppress(Diverged):
            adapted = candidate.adapt(task)
            chosen = {"chosen": candidate.text, "chosen_by": chosen_by}
            return replace(adapted, details={**adapted.details, **chosen, **details})
    raise Diverged(f"the training of every candidate diverged: {', '.join(settings.candidates)}")


def _correct_images(task: Task, settings: AutoSettings) -> dict[str, int]:
    """Return candidate -> how many held-out images it classifies correctly. Diverged candidates are left out.

    The mapping is empty if no image can be held out, or if there is a single candidate.
    """
    labels_N = task.support.labels_N.cpu()
    if len(settings.candidates) == 1 or fewest_images(labels_N) < 2:
        return {}
    fold_N = stratified_folds(labels_N, _folds(task, settings))
    correct = {}
    for candidate in settings.parsed:
        with suppress(Diverged, NonFiniteLogits):
            count = 0
            for fold in range(int(fold_N.max()) + 1):
                held_out_B = torch.nonzero(fold_N == fold).flatten()
                found_B = held_out_logits(task, candidate, held_out_B).argmax(-1)
                count += int((found_B == labels_N[held_out_B]).sum())
            correct[candidate.text] = count
    return correct


def _folds(task: Task, settings: AutoSettings) -> int:
    return min(settings.folds, fewest_images(task.support.labels_N.cpu()))


def _detail_keys(settings: AutoSettings) -> Iterator[tuple[str, str]]:
    """Yield (key in ``details``, candidate) for every candidate.

    The key is ``held_out_NAME`` for the first candidate of the method NAME, ``held_out_NAME_2`` for the second.
    """
    seen: Counter[str] = Counter()
    for candidate in settings.parsed:
        seen[candidate.method.name] += 1
        number = seen[candidate.method.name]
        yield f"held_out_{candidate.method.name}" + (f"_{number}" if number > 1 else ""), candidate.text
