"""Classifiers: the same bits after saving and loading, new classes, half precision."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.task.classifiers import (
    KINDS,
    AdapterClassifier,
    BlendClassifier,
    CacheClassifier,
    Classifier,
    CosineClassifier,
    LinearClassifier,
    MemoryClassifier,
    NoNewClasses,
    TrainedMemoryClassifier,
    TransductiveClassifier,
    UnknownClassifier,
    build_classifier,
)
from bolt.task.equal_classes import equal_classes

GENERATOR = torch.Generator().manual_seed(5)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


HEAD, QUERIES = F.normalize(normal(3, 8), dim=-1), 4 * normal(6, 8)
KEYS, VALUES = F.normalize(normal(5, 8), dim=-1), F.one_hot(torch.tensor([0, 1, 2, 1, 0]), 3).float()
EXAMPLES: dict[str, Classifier] = {
    "cosine": CosineClassifier(HEAD, 31.7),
    "linear": LinearClassifier(normal(3, 8), normal(3), 0.3),
    "cache": CacheClassifier(HEAD, KEYS, VALUES, 31.7, 1.1, 5.5),
    "blend": BlendClassifier(HEAD, normal(3, 9), normal(3)),
    "adapter": AdapterClassifier(HEAD, 31.7, normal(2, 8), normal(8, 2), 0.2),
    "transductive": TransductiveClassifier(normal(3, 8), normal(3), KEYS, normal(5, 3).softmax(dim=-1), 2),
    "memory": MemoryClassifier(HEAD, F.normalize(normal(3, 4, 8), dim=-1), 31.7, 5.5, 0.7),
    "trained_memory": TrainedMemoryClassifier(
        HEAD, F.normalize(normal(3, 4, 8), dim=-1), 31.7, 5.5, 0.7, normal(3, 4, 8), 0.3 * normal(8), 0.3 * normal(3, 8)
    ),
}


def by_hand(of: Classifier) -> Tensor:
    """Return the logits of the queries in float64, from the formulas."""
    f = QUERIES.double() / QUERIES.double().norm(dim=-1, keepdim=True)
    if isinstance(of, LinearClassifier):
        bias = 0.0 if of.bias_C is None else of.bias_C.double()
        return of.scale * (f @ of.weight_CD.double().T + bias)
    if isinstance(of, CacheClassifier):
        affinity = f @ of.keys_ND.double().T
        return of.scale * f @ of.head_CD.double().T + of.alpha * (
            torch.exp(-of.beta * (1 - affinity)) @ of.values_NC.double()
        )
    if isinstance(of, AdapterClassifier):
        added = (f @ of.down_HD.double().T).clamp_min(0) @ of.up_DH.double().T
        mixed = 0.2 * added.clamp_min(0) + 0.8 * f
        return of.scale * mixed / mixed.norm(dim=-1, keepdim=True) @ of.head_CD.double().T
    if isinstance(of, CosineClassifier):
        return of.scale * f @ of.head_CD.double().T
    if isinstance(of, TransductiveClassifier):
        affinity = f @ of.images_ND.double().T
        votes = torch.stack([sum((row[i] * of.probabilities_NC[i].double() for i in row.argsort()[-2:]),
                                 torch.zeros(3).double()) for row in affinity])  # fmt: skip
        return f @ of.weight_CD.double().T + of.bias_C.double() + votes / 6
    if isinstance(of, MemoryClassifier):
        text, rows = (of.scale * f @ of.head_CD.double().T).softmax(dim=-1), of.rows_CRD.double()
        values, asked, added = rows, f, torch.zeros(len(rows), 8)
        if isinstance(of, TrainedMemoryClassifier):
            values, added = of.values_CRD.double(), of.output_CD.double()
            asked = (f + of.query_D) / (f + of.query_D).norm(dim=-1, keepdim=True)
        sums = [
            [torch.exp(-of.beta * (1 - own @ q)) @ gives for own, gives in zip(rows, values, strict=True)]
            for q in asked
        ]
        mixed = [[s / s.norm() + a for s, a in zip(row, added, strict=True)] for row in sums]
        cosines = [[q @ (vector / vector.norm()) for vector in vectors] for q, vectors in zip(f, mixed, strict=True)]
        return (text + of.factor * (of.scale * torch.tensor(cosines)).softmax(dim=-1)).log()
    assert isinstance(of, BlendClassifier)
    weight, bias = of.weight_CE[:, :-1].double(), of.weight_CE[:, -1].double()
    return f @ weight.T + bias + of.alpha_C.double() * (f @ of.head_CD.double().T)


def test_there_is_an_example_of_every_kind() -> None:
    assert EXAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_formula(kind: str) -> None:
    of = EXAMPLES[kind]
    torch.testing.assert_close(of(QUERIES).double(), by_hand(of), rtol=1e-5, atol=1e-4)
    assert of(QUERIES).shape == (6, of.class_count)


@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_made_of_its_parts_gives_the_same_bits(kind: str) -> None:
    of = EXAMPLES[kind]
    again = build_classifier(of.kind, of.tensors(), of.numbers())
    assert type(again) is type(of)
    assert torch.equal(again(QUERIES), of(QUERIES))
    assert torch.equal(of.to("cpu")(QUERIES), of(QUERIES))


@pytest.mark.parametrize("kind", KINDS)
def test_new_classes_get_logits_of_their_own_or_are_refused(kind: str) -> None:
    of, new = EXAMPLES[kind], F.normalize(normal(2, 8), dim=-1)
    if not isinstance(of, CosineClassifier):
        with pytest.raises(NoNewClasses, match=kind):
            of.add_classes(new)
        return
    more = of.add_classes(new)
    torch.testing.assert_close(more(QUERIES)[:, :3], of(QUERIES))
    torch.testing.assert_close(more(QUERIES)[:, 3:], replace(of, head_CD=new)(QUERIES))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_features_in_half_precision_are_classified_in_the_classifiers_own(kind: str, precision: torch.dtype) -> None:
    classify, features = EXAMPLES[kind], QUERIES.to(precision)
    logits = classify(features)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, classify(features.float()))


def test_an_adapted_image_keeps_its_class_probabilities() -> None:
    of = EXAMPLES["transductive"]
    assert isinstance(of, TransductiveClassifier)
    torch.testing.assert_close(of(9 * KEYS).softmax(dim=-1), of.probabilities_NC)
    torch.testing.assert_close(of((9 * KEYS).half().float()).softmax(dim=-1), of.probabilities_NC)


def test_a_cache_can_have_a_sharpness_for_every_key() -> None:
    cache, beta = EXAMPLES["cache"], torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert isinstance(cache, CacheClassifier)
    mixed = replace(cache, beta=beta)
    parts = [replace(cache, keys_ND=KEYS[[i]], values_NC=VALUES[[i]], beta=float(beta[i]))(QUERIES) for i in range(5)]
    text = cache.scale * F.normalize(QUERIES, dim=-1) @ HEAD.T
    torch.testing.assert_close(mixed(QUERIES), text + sum(part - text for part in parts))
    assert torch.equal(build_classifier("cache", mixed.tensors(), mixed.numbers())(QUERIES), mixed(QUERIES))


def test_a_bias_that_is_left_out_stays_out() -> None:
    plain = LinearClassifier(HEAD)
    again = build_classifier("linear", plain.tensors(), plain.numbers())
    assert isinstance(again, LinearClassifier)
    assert again.bias_C is None
    assert torch.equal(again(QUERIES), F.linear(F.normalize(QUERIES, dim=-1), HEAD))


def test_numbers_that_are_still_trained_are_tensors_and_keep_their_bits() -> None:
    alpha = torch.tensor(2.3, requires_grad=True)
    cache = EXAMPLES["cache"]
    assert isinstance(cache, CacheClassifier)
    trained = replace(cache, alpha=alpha)
    assert "alpha" in trained.tensors()
    assert not trained.tensors()["alpha"].requires_grad
    assert torch.equal(
        build_classifier("cache", trained.tensors(), trained.numbers())(QUERIES), trained(QUERIES).detach()
    )


def test_what_is_no_classifier_is_refused() -> None:
    with pytest.raises(UnknownClassifier, match="'forest'; there are cosine, linear"):
        build_classifier("forest", {}, {})
    with pytest.raises(UnknownClassifier, match=r"cosine.*weight_CD"):
        build_classifier("cosine", {"weight_CD": HEAD}, {"scale": 1.0})


def test_a_class_of_ones_own_takes_no_kind_of_another_module() -> None:
    """Saved models of all linear methods would get this class."""
    with pytest.raises(ValueError, match=r"classifiers\.LinearClassifier has the kind 'linear' already"):
        type("Mine", (LinearClassifier,), {}, kind="linear")
    assert KINDS["linear"] is LinearClassifier
    with pytest.raises(TypeError, match="Classifier defines neither logits nor __call__"):
        Classifier().logits(QUERIES)


def test_classes_with_equal_vectors_are_one_group() -> None:
    a, b, c = torch.eye(3)
    assert equal_classes(torch.stack([a, b, a, c, b + 1e-8]).numpy()) == [[0, 2], [1, 4]]
