"""Source models: the recipe that fine-tunes one, and the identity of a fine-tuned or adopted one.

The defaults are the task-vector community's recipe: AdamW, cosine schedule with a fixed warm-up, gradient clipping; the
whole image tower is trained against the frozen text head. The number of epochs is the catalog's for the dataset, or
gives about 2,000 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from pydantic import Field, Strict, TypeAdapter, ValidationError

from bolt.clip.checkpoint_conversion import CONVERSION_VERSION
from orchestrator.core.cell import BackboneRef, DatasetRef, SourceRef
from orchestrator.util.errors import UserError, unknown_name
from orchestrator.util.identity import fingerprint

SOURCE_VERSION = 1
"""Raised whenever a code change alters the fine-tuned weights; part of every source's identity."""

DEFAULT_STEPS = 2000
"""Optimiser steps of a source's fine-tuning when neither the grid nor the catalog sets the epochs."""


@dataclass(frozen=True)
class SourceRecipe:
    """Hyperparameters of the fine-tuning that makes one source model.

    Attributes:
        epochs: passes over the training split; ``None``: the catalog's number, else about 2,000 steps.
        batch_size: images per optimiser step.
        learning_rate: AdamW's peak rate, reached after the warm-up, then cosine to zero.
        weight_decay: AdamW's decoupled decay.
        warmup_steps: steps of linear warm-up.
        clip_norm: the gradient's norm is clipped to this.
    """

    epochs: Annotated[int, Strict(), Field(ge=1)] | None = None
    batch_size: Annotated[int, Strict(), Field(ge=1)] = 128
    learning_rate: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = 1e-5
    weight_decay: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = 0.1
    warmup_steps: Annotated[int, Strict(), Field(ge=0)] = 500
    clip_norm: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = 1.0

    @classmethod
    def from_mapping(cls, changes: Mapping[str, Any], where: str = "") -> SourceRecipe:
        """Return the default recipe with ``changes`` applied; whole numbers are converted for fields that are floats.

        Raises ``UserError`` for an unknown field (with the nearest name), a wrong type or a number out of range.
        """
        known = [field.name for field in fields(cls)]
        for name in changes:
            if name not in known:
                raise unknown_name("field", name, known, where=where)
        try:
            return TypeAdapter(cls).validate_python(changes)
        except ValidationError as error:
            problem = error.errors()[0]
            raise UserError(f"{problem['loc'][0]} is {problem['input']!r}: {problem['msg']}", where=where) from None

    def resolve(self, fine_tune_epochs: int | None, train_images: int) -> SourceRecipe:
        """Return this recipe with its epochs for one dataset.

        The number is the recipe's own, else the catalog's, else as many epochs as take about ``DEFAULT_STEPS`` steps.
        """
        if self.epochs is not None:
            return self
        epochs = fine_tune_epochs or -(-DEFAULT_STEPS * self.batch_size // max(train_images, 1))
        return replace(self, epochs=epochs)

    def source(self, backbone: BackboneRef, dataset: DatasetRef) -> SourceRef:
        """Return the identity of the source model that this recipe makes.

        Raises ``ValueError`` if ``epochs`` is ``None``.
        """
        if self.epochs is None:
            raise ValueError("the recipe has no number of epochs yet: call resolve() first")
        return SourceRef(dataset.name, fingerprint((SOURCE_VERSION, backbone, dataset, self)))


def adopted_source(backbone: BackboneRef, dataset: str, sha256: str) -> SourceRef:
    """Return the identity of an adopted checkpoint.

    It holds its content, the version of its conversion, its backbone and dataset.
    """
    return SourceRef(dataset, fingerprint(("adopted", CONVERSION_VERSION, backbone, dataset, sha256)))
