"""Candidates for methods that choose among other methods: a candidate is read from text and scored on held-out images.

A candidate is a method with settings, written ``lora`` or ``lora(learning_rate=0.001, epochs=20)``. The held-out images
are images of the support.

Shape legend: N support images, B held-out images.
"""

import ast
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bolt.methods.base import METHODS, Method, TowerPasses
from bolt.methods.common.cross_validation import with_images
from bolt.methods.common.frozen_features import support_features
from bolt.task.scoring import SCORING_BATCH, NonFiniteLogits
from bolt.task.task import EVALUATION_VIEW, Adapted, Task


@dataclass(frozen=True)
class Candidate:
    """A method with its settings.

    Attributes:
        text: the candidate as the user wrote it.
        method: the method.
        settings: its settings on the few-shot track.
    """

    text: str
    method: Method
    settings: Any

    @property
    def uses_sources(self) -> bool:
        """Whether the method reads source models with these settings."""
        return self.method.needs_sources(self.settings)

    def adapt(self, task: Task) -> Adapted:
        """Adapt to a task. The method gets the task's sources and class names only if it declares that it uses them."""
        sources = task.sources if self.uses_sources else None
        text = task.text if self.method.trains_text(self.settings) else None
        return self.method.adapt(replace(task, sources=sources, text=text), self.settings)

    def tower_passes(self, support_size: int) -> TowerPasses:
        """Return how many images and prompts go through the towers in an adaptation to ``support_size`` images."""
        return self.method.tower_passes(support_size, self.settings)


def parse_candidate(text: str) -> Candidate:
    """Parse ``method`` or ``method(setting=value, ...)`` into the method and its settings on the few-shot track.

    Raises ``ValueError`` if

    - the text has another form,
    - the method or a setting does not exist, or a setting does not take its value,
    - the method cannot be a candidate: it is not measured on the few-shot track, starts from a meta-learned tower, or
      chooses among candidates itself.
    """
    form = f"the candidate {text!r} is neither 'method' nor 'method(setting=value, ...)'"
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        name, keywords = (tree.func, tree.keywords) if isinstance(tree, ast.Call) else (tree, [])
        if not isinstance(name, ast.Name) or (isinstance(tree, ast.Call) and tree.args):
            raise ValueError(form)
        changes = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise ValueError(form) from None
    method = METHODS[name.id]
    if "fewshot" not in method.tracks or method.meta_recipe is not None or hasattr(method.settings_class(), "recipes"):
        raise ValueError(
            f"{method.name} cannot be a candidate: it is no few-shot method, needs a meta-learned start, or chooses "
            "among candidates itself"
        )
    return Candidate(text, method, method.configure(changes))


def recipes_digest(candidates: Sequence[Candidate]) -> str:
    """Return a hash of the candidates' names, versions and settings (given or default): eight hexadecimal digits."""
    content = [(each.method.name, each.method.version, each.method.identity_of(each.settings)) for each in candidates]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:8]


def held_out_logits(task: Task, candidate: Candidate, held_out_B: Tensor) -> Tensor:
    """Adapt a candidate to all but the held-out support images; return the logits (B, C) of these images, on the CPU.

    Raises what the candidate's method raises, and :class:`bolt.task.scoring.NonFiniteLogits`.
    """
    kept_N = torch.ones(len(task.support), dtype=torch.bool)
    kept_N[held_out_B] = False
    adapted = candidate.adapt(with_images(task, torch.nonzero(kept_N).flatten()))

    def features(rows: Tensor) -> Tensor:
        if adapted.tower is not None:
            return task.backbone.encode_images(task.support.pixels(EVALUATION_VIEW, rows), adapted.tower)
        features_ND = support_features(task, EVALUATION_VIEW)
        return features_ND[rows.to(features_ND.device)]

    with torch.inference_mode():
        batches = torch.split(held_out_B, SCORING_BATCH)
        logits_BC = torch.cat([adapted.classify(features(rows)) for rows in batches]).cpu()
    if not torch.isfinite(logits_BC).all():
        raise NonFiniteLogits(f"NaN or infinite logits among {len(held_out_B)} images")
    return logits_BC
