"""The recipe that fine-tunes source models, and the identities of fine-tuned and of adopted source models.

An adopted source model is a checkpoint that a user brings, fine-tuned elsewhere.

The defaults are the recipe of the task-vector literature: AdamW, a cosine schedule with a fixed warm-up, and gradient
clipping. The whole image tower is trained against the frozen text head. The catalog can set the number of epochs for a
dataset. Without this number, the training takes as many epochs as make about 2,000 steps.
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
"""Version of the fine-tuning code, part of every source's identity. A change that alters the weights raises it."""

DEFAULT_STEPS = 2000
"""Optimiser steps of a fine-tuning if neither the grid nor the catalog sets the number of epochs."""


@dataclass(frozen=True)
class SourceRecipe:
    """Hyperparameters of the fine-tuning that makes one source model.

    Attributes:
        epochs: passes over the training split. ``None``: the catalog's number, or else as many as make 2,000 steps.
        batch_size: images per optimiser step.
        learning_rate: AdamW's highest rate, at the end of the warm-up; afterwards it falls to zero as a cosine.
        weight_decay: AdamW's decoupled decay.
        warmup_steps: steps of linear warm-up.
        clip_norm: largest norm of the gradient; a larger gradient is scaled down.
    """

    epochs: Annotated[int, Strict(), Field(ge=1)] | None = None
    batch_size: Annotated[int, Strict(), Field(ge=1)] = 128
    learning_rate: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = 1e-5
    weight_decay: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = 0.1
    warmup_steps: Annotated[int, Strict(), Field(ge=0)] = 500
    clip_norm: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = 1.0

    @classmethod
    def from_mapping(cls, changes: Mapping[str, Any], where: str = "") -> SourceRecipe:
        """Return the default recipe with some fields changed. Whole numbers become floats where a field is a float.

        Raises ``UserError`` for an unknown field, a wrong type, or a number out of range.
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
        """Return this recipe with its number of epochs set for a dataset.

        If the recipe has a number already, the number is kept. If not, ``fine_tune_epochs`` from the catalog is taken.
        If both are ``None``, the number is just large enough for ``DEFAULT_STEPS`` steps.
        """
        if self.epochs is not None:
            return self
        return replace(self, epochs=fine_tune_epochs or -(-DEFAULT_STEPS * self.batch_size // max(train_images, 1)))

    def is_short(self, train_images: int) -> bool:
        """Return whether the training ends before its warm-up does."""
        return (self.epochs or 0) * -(-train_images // self.batch_size) < self.warmup_steps

    def source(self, backbone: BackboneRef, dataset: DatasetRef) -> SourceRef:
        """Return the identity of the source model that this recipe makes.

        Raises ``ValueError`` if ``epochs`` is ``None``.
        """
        if self.epochs is None:
            raise ValueError("the recipe has no number of epochs yet: call resolve() first")
        return SourceRef(dataset.name, fingerprint((SOURCE_VERSION, backbone, dataset, self)))


def adopted_source(backbone: BackboneRef, dataset: str, sha256: str) -> SourceRef:
    """Return the identity of a checkpoint that a user brings as a source model.

    The identity covers the checkpoint's content, the version of the converting code, the backbone and the dataset.
    """
    return SourceRef(dataset, fingerprint(("adopted", CONVERSION_VERSION, backbone, dataset, sha256)))
