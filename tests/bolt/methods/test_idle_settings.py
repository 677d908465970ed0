"""A setting that another setting makes idle has no effect, and a user's change of it is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import bolt
from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.protocol import PROTOCOLS, PUBLISHED, STRICT
from tests.helpers.adapting import logits_of, run
from tests.helpers.quick_settings import quick_settings
from tests.helpers.towers import make_task

IDLE: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("linear_probe", "fewshot", {"learning_rate": 0.01}, {}, "search is 'support': set search to 'fixed'"),
    ("linear_probe", "fewshot", {"folds": 3}, {"search": "fixed"}, "search is 'fixed': set search to 'support'"),
    ("lp_plus_plus", "fewshot", {"steps": 9}, {}, "search is 'support': set search to 'fixed'"),
    ("lp_plus_plus", "fewshot", {"momentum": 0.5}, {"variant": "official_code"}, "variant is 'official_code'"),
    ("lp_plus_plus", "fewshot", {"weight_decay": 0.5}, {}, "outside of a grid: leave it out"),
    ("tip_adapter", "fewshot", {"alpha": 2.0}, {}, "search is 'loo': set search to 'fixed'"),
    ("tip_adapter", "fewshot", {"beta_max": 9.0}, {"search": "fixed"}, "search is 'fixed': set search to 'loo'"),
    ("ape_t", "fewshot", {"search": "fixed"}, {}, "outside of a grid: leave it out"),
    ("gda", "fewshot", {"one_shot_share": 0.5}, {"alpha": 1.0}, "alpha is 1.0: leave out one of the two"),
    ("logistic_probe", "fewshot", {"one_shot_c": 0.01}, {"c": 1.0}, "c is 1.0: leave out one of the two"),
    ("tip_adapter_f", "fewshot", {"alpha": 2.0}, {}, "search is 'loo': set search to 'fixed'"),
    ("ape_t", "fewshot", {"one_shot_alpha": 9.0}, {}, "no effect on any track"),
    ("auto", "fewshot", {"folds": 2}, {"candidates": ("gda",)}, "set candidates to several methods"),
    ("coop", "fewshot", {"context_tokens": 4}, {"initial_words": "a b"}, "set initial_words to ''"),
    ("kgcoop", "fewshot", {"context_tokens": 3}, {}, "initial_words is 'a photo of a': set initial_words to ''"),
    ("dmn", "fewshot", {"capacity": 1}, {}, "with labels: leave it out"),
    ("dmn", "tta_stream", {"kept": 0.5}, {}, "views is 1: set views to at least 2"),
    ("dmn_trained", "fewshot", {"warmup_fraction": 0.5}, {"warmup_steps": 1}, "warmup_steps is 1: leave out one"),
    ("dmn_trained", "fewshot", {"warmup_steps": 3}, {"schedule": "halving"}, "set schedule to cosine or constant"),
    ("bolt_pooled", "fewshot", {"whitening_epsilon": 0.01}, {}, "set orthogonalisation to 'whitening'"),
    ("bolt_pooled", "tta", {"alpha_by": "support"}, {}, "without labels: leave it out"),
    ("tda", "tta_stream", {"alpha_negative": 9.0}, {"capacity_negative": 0}, "set capacity_negative to at least 1"),
    ("trans_clip", "tta", {"gamma": 0.9}, {}, "no effect on any track: leave it out"),
]
"""Method, track, the idle change, the settings beside it, and a part of the message."""


@pytest.mark.parametrize(("name", "track", "change", "beside", "message"), IDLE)
def test_an_idle_setting_has_no_effect_and_is_refused(
    name: str, track: str, change: dict[str, Any], beside: dict[str, Any], message: str, backbone: Backbone
) -> None:
    method, logits = METHODS[name], []
    given = {key: value for key, value in quick_settings(method.name).items() if key not in change}
    if "initial_words" in message:
        given["initial_words"] = "a b"
    for settings in (given | beside, given | beside | change):
        task = make_task(backbone, unlabelled=track != "fewshot")
        logits.append(logits_of(task, method.adapt(task, method.configure(settings, track))))
    assert torch.equal(*logits)
    with pytest.raises(ValueError, match=next(iter(change))) as refused:
        method.configure_strictly(beside | change, track)
    assert message in str(refused.value)
    with pytest.raises(ValueError, match=next(iter(change))):
        method.configure_strictly(beside | change, track, STRICT)
    method.configure(beside | change, track)  # as for finished results, which keep their settings


def test_a_grid_is_told_which_switch_or_track_makes_a_setting_idle() -> None:
    """The library's user can state neither, so it is told to leave the setting out."""
    for name, change, message in (
        ("ape_t", {"search": "fixed"}, "validation is 'none': set validation to drawn or whole"),
        ("lp_plus_plus", {"weight_decay": 0.5}, "lp_plus_plus is 'sound'"),
        ("dmn", {"capacity": 1}, "track is 'fewshot': set track to 'tta_stream'"),
    ):
        with pytest.raises(ValueError, match=message):
            METHODS[name].configure_strictly(change, "fewshot", STRICT)


OVERRIDDEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("lora", {"lora": "as_published"}, {"rank": 3, "alpha": 5, "warmup_steps": 1, "targets": ("q",)}),
    ("tip_adapter", {"tip_adapter": "as_published"}, {"search": "fixed", "alpha": 9.0, "passes": 3}),
    ("linear_probe", {"linear_probe": "as_published"}, {"search": "fixed", "schedule": "constant"}),
    ("lp_plus_plus", {"lp_plus_plus": "as_published"}, {"variant": "official_code"}),
    ("lp_plus_plus", {"lp_plus_plus": "as_published"}, {"momentum": 0.5, "search": "fixed"}),
]
"""Method, switch, and settings that the switch overrides."""


@pytest.mark.parametrize(("name", "switch", "changes"), OVERRIDDEN)
def test_settings_that_a_switch_overrides_have_no_effect_and_are_noted(
    name: str, switch: dict[str, Any], changes: dict[str, Any], backbone: Backbone
) -> None:
    method, protocol, logits = METHODS[name], STRICT.with_switches(**switch), []
    for settings in (quick_settings(method.name), {**quick_settings(method.name), **changes}):
        task = replace(make_task(backbone), protocol=protocol)
        logits.append(logits_of(task, method.adapt(task, method.configure(settings))))
    assert torch.equal(*logits)
    settings = method.configure_strictly(changes, "fewshot", protocol)
    (note,) = method.overridden(settings, "fewshot", protocol)
    assert all(f"{name}.{setting}" in note for setting in changes)
    assert not [*method.overridden(settings, "fewshot", STRICT)]


def test_other_switches_override_settings_too() -> None:
    searched = replace(STRICT, config_selection="best_on_test")
    for name, protocol, changes in (
        ("linear_probe", searched, {"folds": 3}),
        ("lp_plus_plus", PUBLISHED, {"weight_decay": 0.5}),
        ("bolt_pooled", PUBLISHED, {"sign": "relu"}),
    ):
        assert [*METHODS[name].overridden(METHODS[name].configure(changes), "fewshot", protocol)], name
    dora = METHODS["dora"]
    assert not [*dora.overridden(dora.configure({"rank": 3}), "fewshot", PUBLISHED)]  # the authors' code has none
    auto = METHODS["auto"]
    assert [*auto.overridden(auto.configure({"candidates": ["lora(rank=3)"]}), "fewshot", PUBLISHED)]


def test_a_length_that_agrees_with_the_words_is_taken() -> None:
    """As in the official configurations, which state both."""
    taken = METHODS["coop"].configure_strictly({"initial_words": "a photo of a", "context_tokens": 4}, "fewshot")
    assert taken.context_tokens == 4
    with pytest.raises(ValueError, match="context_tokens has no effect"):
        METHODS["coop"].configure_strictly({"initial_words": "a photo of a", "context_tokens": 3}, "fewshot")


def test_a_preset_without_a_warm_up_is_taken_with_another_schedule() -> None:
    """The user cannot leave out the preset's ``warmup_fraction: 0``."""
    for change in ({"warmup_steps": 100}, {"schedule": "halving"}):
        settings = METHODS["lora"].configure_strictly({"preset": "clip_lora", **change}, "fewshot")
        assert settings.warmup_fraction == 0


def test_settings_with_an_effect_and_presets_are_taken() -> None:
    probe = METHODS["linear_probe"]
    assert probe.configure_strictly({"learning_rate": 0.01, "search": "fixed"}, "fewshot").learning_rate == 0.01
    assert probe.configure_strictly({"learning_rate": 0.01}, "fewshot", PUBLISHED).learning_rate == 0.01
    best = replace(STRICT, config_selection="best_on_test")
    assert probe.configure_strictly({"learning_rate": 0.01}, "fewshot", best).learning_rate == 0.01
    official = PROTOCOLS["tip_adapter"]  # alpha is used while the keys are trained, and then searched
    assert METHODS["tip_adapter_f"].configure_strictly({"alpha": 1.17}, "fewshot", official).alpha == 1.17
    assert METHODS["ape_t"].configure_strictly({"alpha_max": 3.0}, "fewshot", official).alpha_max == 3.0
    for name, method in METHODS.items():
        for preset in method.presets:
            assert method.configure_strictly({"preset": preset}, "fewshot") == method.configure({"preset": preset}), (
                name
            )


def test_candidates_and_the_library_refuse_idle_settings(backbone: Backbone) -> None:
    auto, idle = METHODS["auto"], {"candidates": ["linear_probe(learning_rate=0.01)", "zero_shot"]}
    with pytest.raises(ValueError, match="learning_rate has no effect while search"):
        auto.configure_strictly(idle, "fewshot")
    assert auto.configure_strictly(idle, "fewshot", PUBLISHED) == auto.configure(idle)
    assert auto.support_feature_views(auto.configure(idle)) == 20  # finished results keep their candidates
    pixels = [torch.zeros(3, 8, 8, dtype=torch.uint8)] * 2
    with pytest.raises(ValueError, match="learning_rate has no effect while search"):
        bolt.adapt(backbone, pixels, [0, 1], ["a", "b"], method="linear_probe", learning_rate=0.01)


def test_a_context_without_words_is_refused(backbone: Backbone) -> None:
    """It has no token to train: all settings of TPT were idle, in silence."""
    with pytest.raises(ValueError, match="initial_words is ''; it takes one or more words"):
        run("tpt", make_task(backbone, unlabelled=True), initial_words="")
