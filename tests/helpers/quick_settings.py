"""Settings with which a test runs a method in about a second."""

from dataclasses import fields
from typing import Any

from bolt.methods import METHODS

_USUAL = {"epochs": 2, "batch_size": 8}
_OF_METHOD: dict[str, dict[str, Any]] = {
    "adamerging": {"steps": 3, "batch_size": 4},
    "ape": {"passes": 2},
    "ape_t": {"passes": 2, "epochs": 2, "batch_size": 8},
    "auto": {"candidates": ("zero_shot", "tip_adapter(passes=2)", "bolt_pooled(top_k=2, alphas=(1.0, 3.0))")},
    "bolt": {"top_k": 2, "alphas": (1.0, 3.0), "epochs": 2, "batch_size": 8},
    "bolt_pooled": {"top_k": 2, "alphas": (1.0, 3.0)},
    "clap": {"epochs": 3, "views": 3},
    "clip_adapter": {"epochs": 3, "views": 3},
    "consensus": {"alphas": (0.3, 1.0)},
    "coop": {"context_tokens": 2, "epochs": 3, "views": 3},
    "cross_modal": {"iterations": 20, "views": 1},
    "dmn_trained": {"epochs": 2, "views": 2, "batch_size": 8},
    "dora": {"epochs": 2, "batch_size": 8, "rank": 2},
    "em_dirichlet": {"rounds": 2},
    "gda": {"views": 3},
    "iso_c": {"alphas": (0.3, 1.0)},
    "kgcoop": {"initial_words": "a b", "epochs": 3, "views": 3},
    "knots": {"alphas": (0.3, 1.0)},
    "layer_norm": {"batch_size": 8},
    "linear_probe": {"epochs": 2, "batch_size": 8, "logit_steps": (0.25, 0.75), "folds": 2},
    "lines": {"alphas": (0.3, 1.0)},
    "logistic_probe": {"folds": 2, "max_iterations": 20},
    "lora": {"epochs": 2, "batch_size": 8, "rank": 2},
    "lora_xs": {"epochs": 2, "batch_size": 8, "rank": 4, "alpha": 4.0},
    "lp_plus_plus": {"views": 2, "step_counts": (2, 4), "one_shot_steps": 4, "folds": 2},
    "maple": {"initial_words": "a b", "epochs": 2, "batch_size": 8, "min_steps": 1},
    "meta_init": {"epochs": 2, "batch_size": 8, "meta_steps": 2, "meta_support": 8, "meta_query": 8},
    "mta": {"views": 6},
    "proker": {"views": 2, "betas": (1.0, 2.0), "lambdas": (0.05, 0.1)},
    "prolip": {"steps": 4, "views": 2},
    "promptsrc": {"initial_words": "a b", "tokens": 2, "epochs": 2, "batch_size": 8},
    "task_arithmetic": {"alphas": (0.1, 0.3)},
    "task_res": {"epochs": 3, "views": 3},
    "tent": {"batch_size": 8},
    "ties": {"alphas": (0.3, 1.0)},
    "tip_adapter": {"passes": 2},
    "tip_adapter_f": {"passes": 2, "epochs": 2, "batch_size": 8},
    "tpt": {"views": 6, "initial_words": "a b"},
    "tsv_merge": {"alphas": (0.3, 1.0)},
    "two_stage": {"epochs": 3, "batch_size": 8},
    "vera": {"epochs": 2, "batch_size": 8, "rank": 4},
    "zero": {"views": 6},
}
"""Method -> its settings in tests, where these are not ``_USUAL``."""


def quick_settings(name: str) -> dict[str, Any]:
    """Return the settings of a method in tests: few epochs and small batches, or what the table above has."""
    own = {field.name for field in fields(METHODS[name].settings_class)}
    return dict(_OF_METHOD.get(name, {key: value for key, value in _USUAL.items() if key in own}))
