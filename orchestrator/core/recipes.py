"""Source models: the recipe that fine-tunes one, and the identity of a fine-tuned or adopted one.

The defaults are the task-vector community's recipe: AdamW, cosine schedule with a fixed warm-up, gradient clipping; the
whole image tower is trained against the frozen text head. The number of epochs is the catalog's for the dataset, or
gives about 2,000 steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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

    epochs: int | None = None
    batch_size: int = 128
    learning_rate: float = 1e-5
    weight_decay: float = 0.1
    warmup_steps: int = 500
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers. Raises ``ValueError`` for one that is out of range."""
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs}; at least one is needed")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; at least one image is needed")
        for name in ("learning_rate", "clip_norm"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above zero")
        for name in ("weight_decay", "warmup_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it cannot be negative")

    @classmethod
    def from_mapping(cls, changes: Mapping[str, Any], where: str = "") -> SourceRecipe:
        """The default recipe with ``changes`` applied; whole numbers are converted for fields that are floats.

        Raises ``UserError`` for an unknown field (with the nearest name), a wrong type or a number out of range.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                raise unknown_name("field", name, known, where=where)
            wanted = float if "float" in str(known[name].type) else int
            if wanted is float and type(value) is int:
                value = float(value)
            if type(value) is not wanted and not (value is None and name == "epochs"):
                kind = "number" if wanted is float else "whole number"
                raise UserError(f"{name} is {value!r}, not a {kind}", where=where)
            values[name] = value
        try:
            return cls(**values)
        except ValueError as error:
            raise UserError(str(error), where=where) from None

    def resolve(self, fine_tune_epochs: int | None, train_images: int) -> SourceRecipe:
        """This recipe with the number of epochs set for one dataset.

        Args:
            fine_tune_epochs: the catalog's number for the dataset, if it has one.
            train_images: size of the training split.
        """
        if self.epochs is not None:
            return self
        epochs = fine_tune_epochs or -(-DEFAULT_STEPS * self.batch_size // max(train_images, 1))
        return replace(self, epochs=epochs)

    def source(self, backbone: BackboneRef, dataset: DatasetRef) -> SourceRef:
        """The identity of the source model that this recipe makes. Raises ``ValueError`` if ``epochs`` is ``None``."""
        if self.epochs is None:
            raise ValueError("the recipe has no number of epochs yet: call resolve() first")
        return SourceRef(dataset.name, fingerprint((SOURCE_VERSION, backbone, dataset, self)))


def adopted_source(backbone: BackboneRef, dataset: str, sha256: str) -> SourceRef:
    """The identity of an adopted checkpoint: its content, the version of its conversion, its backbone and dataset."""
    return SourceRef(dataset, fingerprint(("adopted", CONVERSION_VERSION, backbone, dataset, sha256)))
