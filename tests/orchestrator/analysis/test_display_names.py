"""Display names of methods and of their variants."""

import pytest

from bolt.methods import METHODS
from orchestrator.analysis.display_names import display_names, summaries


@pytest.mark.parametrize(
    ("label", "method", "shown"),
    [
        ("lp_plus_plus", "lp_plus_plus", "LP++"),
        ("bolt[top_k=8]", "bolt", "BOLT (rank 8)"),
        ("bolt[top_k=8,learning_rate=0.01]", "bolt", "BOLT (rank 8, learning rate 0.01)"),
        ("rank 3", "bolt", "BOLT (rank 3)"),
        ("lora_matched", "lora", "LoRA (matched)"),
        ("bolt on 2 sources", "bolt", "BOLT (on 2 sources)"),
        ("First-order MAML", "meta_init", "Meta-learned start (First-order MAML)"),
        ("bolt [leave_one_out]", "bolt", "BOLT [leave_one_out]"),
        ("bolt #2", "bolt", "BOLT #2"),
        ("theirs", "not_registered", "theirs"),
    ],
)
def test_a_display_name_is_the_title_with_the_variant(label: str, method: str, shown: str) -> None:
    assert display_names({label: method}) == {label: shown}


def test_display_names_are_different_where_labels_are() -> None:
    shown = display_names({"bolt": "bolt", "BOLT": "bolt", "lora": "lora"})
    assert len(set(shown.values())) == 3
    assert shown["lora"] == "LoRA"


def test_every_registered_method_says_what_it_does() -> None:
    assert set(summaries({name: name for name in METHODS})) == set(METHODS)
