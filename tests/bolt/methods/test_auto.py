"""The choice among methods: the chosen candidate, the rows that it may depend on, and the form of candidates."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.auto import AutoSettings, adapt
from bolt.methods.common import candidates as module
from bolt.methods.common.candidates import held_out_logits, parse_candidate
from bolt.methods.common.cross_validation import NO_HOLD_OUT
from bolt.task.task import Adapted, ClassText, Task
from bolt.training.loop import Diverged
from tests.helpers.frozen_tasks import clip_like
from tests.helpers.towers import RandomSources, make_task

PROBE, ZERO_SHOT = "logistic_probe(c=1.0)", "zero_shot"


def test_it_takes_what_is_best_on_held_out_images_and_says_so(backbone: Backbone) -> None:
    """With a random text head the probe wins, and with random images the text head wins."""
    blind = clip_like(backbone, shots=8, text_error=30.0)
    chosen = adapt(blind.task, AutoSettings((ZERO_SHOT, PROBE)))
    assert chosen.details["chosen"] == PROBE
    assert float(chosen.details["held_out_logistic_probe"]) > float(chosen.details["held_out_zero_shot"])
    alone = METHODS["logistic_probe"].adapt(blind.task, METHODS["logistic_probe"].configure({"c": 1.0}))
    assert torch.equal(chosen.classify(blind.test_ND), alone.classify(blind.test_ND)), "adapted to all of the support"
    good_head = clip_like(backbone, shots=8, text_error=0.0, signal=0.05)
    assert adapt(good_head.task, AutoSettings((PROBE, ZERO_SHOT))).details["chosen"] == ZERO_SHOT


def test_with_one_image_a_class_the_first_candidate_is_taken(backbone: Backbone) -> None:
    task = clip_like(backbone, shots=1).task
    for order in ((ZERO_SHOT, PROBE), (PROBE, ZERO_SHOT)):
        details = adapt(task, AutoSettings(order)).details
        assert details["chosen"] == order[0]
        assert details["chosen_by"] == NO_HOLD_OUT
        assert not any(key.startswith("held_out") for key in details)


def test_no_candidate_sees_a_held_out_image_or_its_label(backbone: Backbone) -> None:
    """The classifier does not depend on the pixels, features and labels of the held-out rows."""
    task = make_task(backbone, shots=4, sources=RandomSources(backbone))
    held_out = torch.tensor([0, 1, 2])

    def poisoned(tensor: Tensor, rows: Tensor) -> Tensor:
        at = torch.isin(rows, held_out)
        changed = tensor.clone()
        changed[at] = changed[at].flip(0) if changed.dim() == 1 else 1 + 0 * changed[at]
        return changed

    whole = task.support
    everything = torch.arange(len(whole))
    support = replace(
        whole,
        labels_N=poisoned(whole.labels_N, everything),
        pixels=lambda view, rows: whole.pixels(view, rows) if view == 0 else poisoned(whole.pixels(view, rows), rows),
        features=lambda view: whole.features(view) if view == 0 else poisoned(whole.features(view), everything),
    )
    quick = "epochs=2, batch_size=8"
    for text in ("linear_probe(epochs=2)", f"lora({quick}, rank=2)", f"bolt({quick}, top_k=2)"):
        candidate = parse_candidate(text)
        clean = held_out_logits(task, candidate, held_out)
        assert torch.equal(clean, held_out_logits(replace(task, support=support), candidate, held_out))


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("linear_probe", set()), ("bolt", {"sources"}), ("coop", {"text"}), ("lora", set()),
        ("lora(towers='both')", {"text"}),
    ],
)  # fmt: skip
def test_a_candidate_gets_only_what_it_declares(text: str, reads: set[str], backbone: Backbone) -> None:
    words = ClassText(("a", "b"), ("a photo of {}",))
    task = replace(make_task(backbone, shots=2, sources=RandomSources(backbone)), text=words)
    given: list[Task] = []

    def adapt(task: Task, settings: object) -> Adapted:
        given.append(task)
        return Adapted(lambda features_BD: features_BD)

    candidate = parse_candidate(text)
    replace(candidate, method=replace(candidate.method, adapt=adapt)).adapt(task)
    assert {name for name in ("sources", "text") if getattr(given[0], name) is not None} == reads


def test_a_candidate_that_diverges_is_left_out(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    task = clip_like(backbone, shots=4).task

    def diverge(task: Task, settings: object) -> Adapted:
        raise Diverged("the loss is NaN")

    broken = replace(METHODS["logistic_probe"], adapt=diverge)
    monkeypatch.setattr(module, "METHODS", {**METHODS, "logistic_probe": broken})
    details = adapt(task, AutoSettings((PROBE, ZERO_SHOT))).details
    assert details["chosen"] == ZERO_SHOT
    assert "held_out_logistic_probe" not in details
    with pytest.raises(Diverged, match="every candidate"):
        adapt(task, AutoSettings((PROBE,)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bolt(", "neither"), ("bolt(0.1)", "neither"), ("bolt(learning_rate=open('x'))", "neither"),
        ("__import__('os').system('x')", "neither"), ("", "neither"), ("boltt", "did you mean 'bolt'"),
        ("bolt(topk=3)", "did you mean 'top_k'"), ("auto", "cannot be a candidate"), ("tent", "cannot be a candidate"),
        ("meta_init", "cannot be a candidate"),
    ],
)  # fmt: skip
def test_a_candidate_that_cannot_be_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        METHODS["auto"].configure({"candidates": (text,)})


def test_its_requirements_are_the_union_of_the_candidates() -> None:
    method = METHODS["auto"]
    frozen = method.configure({})
    assert not method.needs_sources(frozen)
    assert method.source_directions(frozen, 96, 7) == 0
    both = method.configure({"candidates": ("zero_shot", "bolt(top_k=3)", "tip_adapter(passes=7)")})
    assert method.needs_sources(both)
    assert method.source_directions(both, 96, 7) == 3
    assert method.support_feature_views(both) == 7
    bolt = METHODS["bolt"]
    assert method.tower_passes(100, both).training > bolt.tower_passes(100, bolt.configure({})).training


def test_a_change_of_a_candidates_defaults_is_another_identity(backbone: Backbone) -> None:
    method = METHODS["auto"]
    one = method.identity_of(method.configure({"candidates": ("lora",)}))
    same = method.identity_of(method.configure({"candidates": ("lora",), "recipes": dict(one)["recipes"]}))
    other = method.identity_of(method.configure({"candidates": ("lora(rank=3)",)}))
    assert one == same
    assert dict(one)["recipes"] != dict(other)["recipes"]
    with pytest.raises(ValueError, match="have changed"):
        adapt(clip_like(backbone, shots=2).task, AutoSettings(("zero_shot",), recipes="00000000"))
