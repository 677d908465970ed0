"""Classifiers of a tower's features as data: each names its tensors and numbers, so any of them can be written down.

A method gives one back (:class:`bolt.task.task.Adapted`). Any function from features to logits can be measured; one
that is a :class:`Classifier` can also be saved, moved to another device, and read again with the same bits coming out.

Shape legend: B queries, N cached images, C classes, D embedding width, E = D + 1 with a one for the bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F


class UnknownClassifier(ValueError):
    """Something that cannot be written down as a classifier, or is no record of one."""


@dataclass(frozen=True, eq=False)
class Classifier(ABC):
    """Raw features (B, D) -> logits (B, C). Sub-classes are its kinds; their fields are tensors and numbers.

    Attributes:
        kind: the name it is stored under.
    """

    kind: ClassVar[str] = ""

    @abstractmethod
    def __call__(self, features_BD: Tensor) -> Tensor: ...

    @property
    @abstractmethod
    def class_count(self) -> int:
        """C."""

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name, detached; one that is left out (a bias of ``None``) has no entry."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.detach() for name, value in found.items() if isinstance(value, Tensor)}

    def numbers(self) -> dict[str, float]:
        """Its plain numbers by name, in double precision."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}

    def to(self, device: torch.device | str) -> Self:
        """The same classifier on a device."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self.tensors().items()})


@dataclass(frozen=True, eq=False)
class CosineClassifier(Classifier):
    """The text head: ``scale * cos(feature, class)``.

    Attributes:
        head_CD: unit class embeddings.
    """

    kind: ClassVar[str] = "cosine"

    head_CD: Tensor
    scale: float

    def __call__(self, features_BD: Tensor) -> Tensor:
        return self.scale * F.normalize(features_BD, dim=-1) @ self.head_CD.T

    @property
    def class_count(self) -> int:
        return len(self.head_CD)


@dataclass(frozen=True, eq=False)
class LinearClassifier(Classifier):
    """``scale * (W f + b)`` of unit features f, in the precision of W."""

    kind: ClassVar[str] = "linear"

    weight_CD: Tensor
    bias_C: Tensor | None = None
    scale: float = 1.0

    def __call__(self, features_BD: Tensor) -> Tensor:
        unit_BD = F.normalize(features_BD.to(self.weight_CD), dim=-1)
        return self.scale * F.linear(unit_BD, self.weight_CD, self.bias_C)

    @property
    def class_count(self) -> int:
        return len(self.weight_CD)


@dataclass(frozen=True, eq=False)
class CacheClassifier(Classifier):
    """A text head with Tip-Adapter's cache beside it: ``scale f T^T + alpha sum_i exp(-beta (1 - f . key_i)) value_i``.

    Attributes:
        head_CD: unit text embeddings.
        keys_ND: of unit norm until they are trained.
        values_NC: one-hot labels.
        alpha, beta: weight and sharpness of the cache; tensors while they are trained.
    """

    kind: ClassVar[str] = "cache"

    head_CD: Tensor
    keys_ND: Tensor
    values_NC: Tensor
    scale: float
    alpha: float | Tensor
    beta: float | Tensor

    def __call__(self, features_BD: Tensor) -> Tensor:
        unit_BD = F.normalize(features_BD.to(self.head_CD), dim=-1)
        added_BC = cache_logits(unit_BD @ self.keys_ND.T, self.values_NC, self.beta)
        return self.scale * unit_BD @ self.head_CD.T + self.alpha * added_BC

    @property
    def class_count(self) -> int:
        return len(self.head_CD)


@dataclass(frozen=True, eq=False)
class BlendClassifier(Classifier):
    """LP++'s: ``w_c . f + b_c + alpha_c (t_c . f)`` of unit features f and unit text embeddings t_c.

    Attributes:
        head_CD: unit text embeddings, which stay.
        weight_CE: w with b as its last column.
        alpha_C: weight of each class's text embedding.
    """

    kind: ClassVar[str] = "blend"

    head_CD: Tensor
    weight_CE: Tensor
    alpha_C: Tensor

    def __call__(self, features_BD: Tensor) -> Tensor:
        return self.logits(F.normalize(features_BD.to(self.head_CD), dim=-1))

    def logits(self, unit_BD: Tensor) -> Tensor:
        """Unit features -> logits (B, C)."""
        return append_one(unit_BD) @ self.weight_CE.T + self.alpha_C * (unit_BD @ self.head_CD.T)

    @property
    def class_count(self) -> int:
        return len(self.head_CD)


def cache_logits(affinity_BN: Tensor, values_NC: Tensor, beta: float | Tensor) -> Tensor:
    """What the cache adds at alpha = 1, (B, C), from cosines of queries and keys."""
    return torch.exp(-beta * (1 - affinity_BN)) @ values_NC


def append_one(features_BD: Tensor) -> Tensor:
    """A one appended to every feature, for the bias to multiply: (B, E)."""
    return F.pad(features_BD, (0, 1), value=1.0)


KINDS: Mapping[str, type[Classifier]] = {
    kind.kind: kind for kind in (CosineClassifier, LinearClassifier, CacheClassifier, BlendClassifier)
}
"""The kinds that can be stored, by name."""


def build_classifier(kind: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> Classifier:
    """The classifier of a kind with these tensors and numbers: the inverse of what a classifier says of itself.

    Raises ``UnknownClassifier`` for a kind that does not exist, and for parts that are not those of the kind.
    """
    if kind not in KINDS:
        raise UnknownClassifier(f"there is no classifier of kind {kind!r}; there are {', '.join(KINDS)}")
    try:
        return KINDS[kind](**tensors, **numbers)
    except TypeError as error:
        raise UnknownClassifier(f"these are not the parts of a {kind} classifier: {error}") from None
