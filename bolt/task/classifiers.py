"""Classifiers of image features that can be saved: each is a set of named tensors and numbers.

A method returns its classifier in :class:`bolt.task.task.Adapted`. The classifier can be any function from features to
logits, but only a :class:`Classifier` can be saved, moved to another device, and loaded with bit-identical logits.

Shape legend: B queries, N cached images, C classes, D embedding width, E = D + 1 for features with a one appended, H
width of an adapter's hidden layer, R rows of a memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

_QUERIES = 1024
"""Largest number of queries in a block. A transductive classifier makes the cosines of one block at a time."""
_NUMBERS = 2**26
"""Largest number of values that a memory classifier computes for one block of queries: 256 MiB in float32."""
_SAME_IMAGE = 1 - 1e-6
"""A cosine above which two features belong to the same image. Encoding an image again changes only the last bits."""
_SMALLEST = 1e-30
"""Smaller probabilities are raised to this value, so that their logarithms are finite."""


class UnknownClassifier(ValueError):
    """A classifier cannot be saved, or saved data describe no classifier."""


class NoNewClasses(TypeError):
    """The classifier cannot classify a new class, because the name of the class alone is not enough for it."""


KINDS: "dict[str, type[Classifier]]" = {}
"""The classifiers that can be saved, by :attr:`Classifier.kind`."""


@dataclass(frozen=True, eq=False)
class Classifier:
    """Base class: raw features (B, D) -> logits (B, C).

    The fields of a subclass are tensors and numbers. The first field is a tensor with a row for each class.

    Attributes:
        kind: name of the subclass in saved models: ``class MyClassifier(Classifier, kind="mine")``. A subclass that
            does not state a kind is saved as its base class.
    """

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            if (other := KINDS.get(kind, cls)).__module__ != cls.__module__:
                raise ValueError(f"{other.__module__}.{other.__name__} has the kind {kind!r} already; choose another")
            cls.kind = kind
            KINDS[kind] = cls

    def __call__(self, features_BD: Tensor) -> Tensor:
        """Return the logits (B, C) of raw features, in the precision of the first field."""
        first: Tensor = getattr(self, fields(self)[0].name)
        return self.logits(F.normalize(features_BD.to(first), dim=-1))

    def logits(self, unit_BD: Tensor) -> Tensor:
        """Return the logits (B, C) of unit features. A subclass defines this function, or ``__call__``."""
        raise TypeError(f"{type(self).__name__} defines neither logits nor __call__")

    @property
    def class_count(self) -> int:
        """Number of classes, C: the rows of the first field."""
        return len(getattr(self, fields(self)[0].name))

    def add_classes(self, head_CD: Tensor) -> Self:
        """Return a classifier with new classes after its own, given the unit text embeddings of the new classes.

        Raises ``NoNewClasses`` if text embeddings are not enough for this kind of classifier.
        """
        raise NoNewClasses(f"a {self.kind} classifier cannot classify classes that it was not adapted to")

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are tensors, detached; a field that is ``None`` has no entry."""
        return {name: value.detach() for name, value in vars(self).items() if isinstance(value, Tensor)}

    def numbers(self) -> dict[str, float]:
        """Return the fields that are numbers."""
        return {name: float(value) for name, value in vars(self).items() if isinstance(value, int | float)}

    def frozen(self) -> Self:
        """Return a copy whose tensors are copies too, without gradients."""
        return replace(self, **{name: tensor.clone() for name, tensor in self.tensors().items()})

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on the device."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self.tensors().items()})


@dataclass(frozen=True, eq=False)
class CosineClassifier(Classifier, kind="cosine"):
    """The text head: ``scale * cos(feature, class)``, in the precision of the class embeddings.

    Attributes:
        head_CD: unit class embeddings.
    """

    head_CD: Tensor
    scale: float

    def logits(self, unit_BD: Tensor) -> Tensor:
        return self.scale * unit_BD @ self.head_CD.T

    def add_classes(self, head_CD: Tensor) -> Self:
        return replace(self, head_CD=torch.cat([self.head_CD, head_CD.to(self.head_CD)]))


@dataclass(frozen=True, eq=False)
class LinearClassifier(Classifier, kind="linear"):
    """``scale * (W f + b)`` of unit features f, in the precision of W."""

    weight_CD: Tensor
    bias_C: Tensor | None = None
    scale: float = 1.0

    def logits(self, unit_BD: Tensor) -> Tensor:
        return self.scale * F.linear(unit_BD, self.weight_CD, self.bias_C)


@dataclass(frozen=True, eq=False)
class CacheClassifier(Classifier, kind="cache"):
    """Text head and Tip-Adapter cache: ``scale f T^T + alpha sum_i exp(-beta (1 - f . key_i)) value_i``, for unit f.

    If ``channels_q`` is given, the cache reads only these q entries of f and normalises them again. A key then has q
    entries.

    Attributes:
        head_CD: unit text embeddings, T.
        keys_ND: features of the cached images, of unit norm unless they were trained.
        values_NC: one-hot labels of the cached images, or any other numbers that a key adds to the logits.
        alpha: weight of the cache; a tensor during training.
        beta: sharpness of the cache: one number (a tensor during training), or one number per key, (N,).
    """

    head_CD: Tensor
    keys_ND: Tensor
    values_NC: Tensor
    scale: float
    alpha: float | Tensor
    beta: float | Tensor
    channels_q: Tensor | None = None

    def affinity(self, unit_BD: Tensor) -> Tensor:
        """Return the cosines (B, N) of unit features and keys."""
        if self.channels_q is not None:
            unit_BD = F.normalize(unit_BD[:, self.channels_q], dim=-1)
        return unit_BD @ self.keys_ND.T

    def logits(self, unit_BD: Tensor) -> Tensor:
        added_BC = cache_logits(self.affinity(unit_BD), self.values_NC, self.beta)
        return self.scale * unit_BD @ self.head_CD.T + self.alpha * added_BC


@dataclass(frozen=True, eq=False)
class BlendClassifier(Classifier, kind="blend"):
    """LP++: ``w_c . f + b_c + alpha_c (t_c . f)`` of unit features f and unit text embeddings t_c.

    In training, several classifiers with images of their own can be a stack: ``weight_CE`` and ``alpha_C`` then have a
    leading axis.

    Attributes:
        head_CD: unit text embeddings, t; not trained.
        weight_CE: w with b as its last column.
        alpha_C: weight of each class's text embedding.
    """

    head_CD: Tensor
    weight_CE: Tensor
    alpha_C: Tensor

    def logits(self, unit_BD: Tensor) -> Tensor:
        return self.logits_of(append_one(unit_BD), unit_BD @ self.head_CD.T)

    def logits_of(self, ones_BE: Tensor, text_BC: Tensor) -> Tensor:
        """Return the logits (B, C) from the features with a 1 appended, and from their cosines with the text."""
        return ones_BE @ self.weight_CE.mT + self.alpha_C[..., None, :] * text_BC


@dataclass(frozen=True, eq=False)
class AdapterClassifier(CosineClassifier, kind="adapter"):
    """CLIP-Adapter: ``scale * cos(r', t_c)`` with ``r' = ratio relu(U relu(V r)) + (1 - ratio) r`` for a raw feature r.

    A positive factor of r does not change the cosine, so raw and unit features give the same logits.

    Attributes:
        down_HD, up_DH: the adapter's two layers, V and U.
        ratio: share of the adapter's output in the adapted feature, in [0, 1].
    """

    down_HD: Tensor
    up_DH: Tensor
    ratio: float

    def __call__(self, features_BD: Tensor) -> Tensor:
        raw_BD = features_BD.to(self.head_CD)
        return super().__call__(self.ratio * self.adapter(raw_BD) + (1 - self.ratio) * raw_BD)

    def adapter(self, features_BD: Tensor) -> Tensor:
        """Return the adapter's output (B, D); no entry is negative."""
        return torch.relu(torch.relu(features_BD @ self.down_HD.T) @ self.up_DH.T)


@dataclass(frozen=True, eq=False)
class TransductiveClassifier(Classifier, kind="transductive"):
    """TransCLIP, StatA, EM-Dirichlet: for an adapted image, repeats the class probabilities that the method found.

    An adapted image is one that the method adapted to. A query with a cosine above ``1 - 1e-6`` to an adapted image is
    that image. The logits of the query are then the logarithms of the image's class probabilities. Any other query with
    the unit feature f has the logits ``w_c . f + b_c + u_c . f^2 + sum_i cos(f, f_i) p_ic / 6``, where i are the
    nearest adapted images and p_i their class probabilities. Only StatA has the term with u.

    Attributes:
        weight_CD, bias_C: w and b.
        images_ND: unit features f_i of the adapted images.
        probabilities_NC: class probabilities p_i of the adapted images.
        neighbours: number of nearest adapted images in the sum; 0 for no sum.
        squares_CD: u; ``None`` for TransCLIP and EM-Dirichlet.
    """

    weight_CD: Tensor
    bias_C: Tensor
    images_ND: Tensor
    probabilities_NC: Tensor
    neighbours: float = 3
    squares_CD: Tensor | None = None

    def logits(self, unit_BD: Tensor) -> Tensor:
        return torch.cat([self._logits(block) for block in torch.split(unit_BD, _QUERIES)])

    def _logits(self, unit_BD: Tensor) -> Tensor:
        cosines, nearest = (unit_BD @ self.images_ND.T).topk(min(max(int(self.neighbours), 1), len(self.images_ND)))
        probabilities = self.probabilities_NC[nearest]  # (B, neighbours, C)
        scored_BC = F.linear(unit_BD, self.weight_CD, self.bias_C)
        if self.neighbours:
            scored_BC = scored_BC + (cosines[:, :, None] * probabilities).sum(dim=1) / 6
        if self.squares_CD is not None:
            scored_BC = scored_BC + unit_BD.square() @ self.squares_CD.T
        known_B = cosines[:, 0] > _SAME_IMAGE
        return torch.where(known_B[:, None], probabilities[:, 0].clamp_min(_SMALLEST).log(), scored_BC)


@dataclass(frozen=True, eq=False)
class MemoryClassifier(Classifier, kind="memory"):
    """DMN: adds the predictions of the text embeddings and of a memory, which holds features of each class.

    The memory compares a query f with one vector per class. The vector depends on the query: it is the normalised sum
    of the rows m of the class, each with the weight ``exp(-beta (1 - f . m))``.

    The text embeddings give the probabilities p, and the vectors of the classes give p'. Each is a softmax of ``scale``
    times the cosines with f. The logits are ``log(p + factor p')``.

    Attributes:
        head_CD: unit text embeddings.
        rows_CRD: unit features in the memory of each class; a row of zeros is empty.
        scale: factor of the cosines.
        beta: sharpness of the weights of rows.
        factor: weight of p'.
    """

    head_CD: Tensor
    rows_CRD: Tensor
    scale: float
    beta: float
    factor: float

    def logits(self, unit_BD: Tensor) -> Tensor:
        classes, rows, width = self.rows_CRD.shape
        queries = max(1, _NUMBERS // (classes * (rows + width)))
        return torch.cat([self._logits(block) for block in torch.split(unit_BD, queries)])

    def _logits(self, unit_BD: Tensor) -> Tensor:
        text_BC = (self.scale * unit_BD @ self.head_CD.T).softmax(dim=-1)
        return (text_BC + self.factor * self.answers(unit_BD)).clamp_min(_SMALLEST).log()

    def answers(self, unit_BD: Tensor) -> Tensor:
        """Return the class probabilities p' (B, C) that the memory gives to unit features."""
        logits_BC: Tensor = self.scale * torch.einsum("bd,bcd->bc", unit_BD, self.vectors(unit_BD))
        return logits_BC.softmax(dim=-1)

    def vectors(self, unit_BD: Tensor) -> Tensor:
        """Return the vector of each class for each query, (B, C, D)."""
        return self._mix(unit_BD, self.rows_CRD)

    def _mix(self, unit_BD: Tensor, values_CRD: Tensor) -> Tensor:
        weight_BCR = torch.exp(-self.beta * (1 - torch.einsum("bd,crd->bcr", unit_BD, self.rows_CRD)))
        return F.normalize(torch.einsum("bcr,crd->bcd", weight_BCR, values_CRD), dim=-1)


@dataclass(frozen=True, eq=False)
class TrainedMemoryClassifier(MemoryClassifier, kind="trained_memory"):
    """DMN with trained biases. Each row of the memory has a key, which gives the weight, and a value, which is summed.

    Attributes:
        rows_CRD: the keys.
        values_CRD: the values; a row of zeros is empty.
        query_D: bias of the query. It is added to the query, and the normalised sum is compared with the keys.
        output_CD: bias of each class. It is added to the vector of the class, which is then normalised again.
    """

    values_CRD: Tensor
    query_D: Tensor
    output_CD: Tensor

    def vectors(self, unit_BD: Tensor) -> Tensor:
        mixed_BCD = self._mix(F.normalize(unit_BD + self.query_D, dim=-1), self.values_CRD)
        return F.normalize(mixed_BCD + self.output_CD, dim=-1)


def cache_logits(affinity_BN: Tensor, values_NC: Tensor, beta: float | Tensor) -> Tensor:
    """Return the logits (B, C) of a cache, without the factor alpha. ``affinity_BN``: cosines of queries and keys."""
    return torch.exp(-beta * (1 - affinity_BN)) @ values_NC


def append_one(features_BD: Tensor) -> Tensor:
    """Append a one to every feature, (B, D) -> (B, E), so that the last column of a weight matrix is the bias."""
    return F.pad(features_BD, (0, 1), value=1.0)


def build_classifier(kind: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> Classifier:
    """Rebuild a classifier from its ``kind``, its :meth:`Classifier.tensors` and its :meth:`Classifier.numbers`.

    Raises ``UnknownClassifier`` for an unknown kind, or tensors and numbers that are not the fields of that kind.
    """
    if kind not in KINDS:
        raise UnknownClassifier(f"there is no classifier of kind {kind!r}; there are {', '.join(KINDS)}")
    try:
        return KINDS[kind](**tensors, **numbers)
    except TypeError as error:
        raise UnknownClassifier(f"these are not the fields of a {kind} classifier: {error}") from None
