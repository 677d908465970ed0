"""The paper's numbers: all there, looked up by the names the catalog gives."""

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.report.paper.published import (
    AVERAGE,
    Position,
    printed_tables,
    published_accuracy,
    published_datasets,
)
from orchestrator.report.published_report import paper_verdicts, published_verdict_table


@pytest.mark.parametrize(
    ("key", "accuracy"),
    [
        (("fewshot", "ViT-B/32", "general", 1, "linear_probe", "DTD"), 41.97),
        (("tta", "ViT-B/16", "general", None, "bolt", AVERAGE), 69.62),
        (("tta", "ViT-B/16", "general", 0, "bolt", AVERAGE), 69.62),
        (("ood", "ViT-B/32", "imagenet", 16, "bolt", "ImageNet-A"), 15.88),
        (("fewshot", "ViT-B/32", "general", 0, "zero_shot", "DTD"), None),
        (("fewshot", "ViT-B/32", "general", 3, "linear_probe", "DTD"), None),
        (("fewshot", None, "general", 1, "linear_probe", "DTD"), None),
        (("fewshot", "ViT-B/32", "general", 1, "linear_probe", None), None),
    ],
)
def test_lookups(key: tuple[str, str | None, str, int | None, str, str | None], accuracy: float | None) -> None:
    assert published_accuracy(*key) == accuracy


def test_only_the_known_slip_is_printed_twice_with_different_values() -> None:
    seen: dict[Position, set[float]] = {}
    for at, accuracy in (printed for own in printed_tables().values() for printed in own.items()):
        seen.setdefault(at, set()).add(accuracy)
    assert {at: values for at, values in seen.items() if len(values) > 1} == {
        Position("tta", "general", "ViT-B/16", 0, "bolt", AVERAGE): {69.92, 69.62}
    }


def test_every_dataset_and_backbone_of_the_catalog_is_found_in_the_few_shot_tables() -> None:
    catalog = load_catalog()
    fine_tuned = {(row.backbone, row.dataset) for row in published_datasets()}
    for domain in ("general", "remote_sensing"):
        for entry in catalog.datasets_of(domain):
            for backbone in ("vit-b-32", "vit-b-16", "vit-l-14"):
                name = catalog.backbones[backbone].published_as
                for k in (1, 2, 4, 8, 16):
                    assert published_accuracy("fewshot", name, domain, k, "bolt", entry.published_as) is not None
                assert (name, entry.published_as) in fine_tuned


def test_the_best_sets_of_the_printed_few_shot_tables() -> None:
    undecided = {
        ("general", "ViT-B/16"): {8, 16},
        ("remote_sensing", "ViT-B/16"): {16},
        ("remote_sensing", "ViT-B/32"): {16},
        ("remote_sensing", "ViT-L/14"): {16},
    }
    answers = paper_verdicts()
    assert sum(len(answer.verdicts) for answer in answers) == 30
    for answer in answers:
        for verdict in answer.verdicts:
            both = verdict.k in undecided.get((answer.place.domain, answer.place.backbone), set())
            assert set(verdict.best_set) == ({"bolt", "lora"} if both else {"bolt"})
            assert verdict.n == (17 if answer.place.domain == "general" else 15)
    assert len(published_verdict_table(answers, "printed").rows) == 30
