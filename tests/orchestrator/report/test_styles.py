"""Colours of methods: the same in every grid, and different for every reader."""

import itertools
import math

import numpy as np

from bolt.methods import METHODS as REGISTERED
from orchestrator.report.styles import NEUTRAL, styles_of

METHODS = (
    *("linear_probe", "logistic_probe", "tip_adapter", "tip_adapter_f", "lp_plus_plus", "lora", "dora", "atlas"),
    *("bolt", "bolt_pooled", "full_finetune", "task_arithmetic", "tsv_merge", "layer_norm", "meta_init"),
    *("clip_adapter", "task_res", "gda", "coop"),
)
"""The methods with a colour of their own."""


def test_a_method_keeps_its_colour_from_grid_to_grid() -> None:
    small = styles_of({"BOLT": "bolt", "Zero-shot": "zero_shot"})
    large = styles_of({f"m{i}": f"m{i}" for i in range(20)} | {"BOLT": "bolt", "Zero-shot": "zero_shot"})
    assert small["BOLT"] == large["BOLT"]
    assert small["Zero-shot"]["color"] == large["Zero-shot"]["color"] == NEUTRAL
    assert len({tuple(style.values()) for style in large.values()}) == len(large)
    ablation = styles_of({"BOLT": "bolt", "BOLT (top 9)": "bolt"})
    assert ablation["BOLT"] == small["BOLT"] != ablation["BOLT (top 9)"]


def test_named_methods_keep_colours_that_every_reader_can_tell_apart() -> None:
    together = styles_of({name: name for name in ("zero_shot", "somebody_elses", *METHODS)})
    assert all(styles_of({name: name})[name] == together[name] for name in METHODS)
    for vision in VISIONS.values():
        points = [_oklab(together[name]["color"], vision) for name in METHODS]
        apart = [math.dist(a, b) for i, a in enumerate(points) for b in points[i + 1 :]]
        assert min(apart) > 0.06  # three times a just noticeable difference of about 0.02


def test_methods_that_share_a_colour_differ_in_marker_and_line() -> None:
    names = sorted(set(REGISTERED) - {"zero_shot"})
    together = styles_of({name: name for name in (*names, "somebody_elses", "another_one")})
    for one, other in itertools.combinations(together.values(), 2):
        if one["color"] == other["color"]:
            assert one["marker"] != other["marker"]
            assert one["linestyle"] != other["linestyle"]
    for track in {track for method in REGISTERED.values() for track in method.tracks} - {"fewshot", "ood", "meta"}:
        drawn = styles_of({name: name for name in names if track in REGISTERED[name].tracks})
        assert len({style["color"] for style in drawn.values()}) == len(drawn)


VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998],
    ]),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881],
    ]),
}  # fmt: skip
"""Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB."""


CONES = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])  # fmt: skip
LAB = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])  # fmt: skip


def _oklab(colour: str, vision: np.ndarray) -> np.ndarray:
    """Return the colour as a reader sees it, in Ottosson's OKLab, where distances are about as large as they look."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen: np.ndarray = LAB @ np.cbrt(CONES @ np.clip(vision @ linear, 0, 1))
    return seen


def test_variants_share_their_methods_colour_in_shades() -> None:
    ranks = [f"BOLT, rank {rank}" for rank in (1, 3, 5, 8, 12, 16, 24)]
    styles = styles_of(dict.fromkeys(("bolt", *ranks), "bolt") | {"tip_adapter": "tip_adapter"})
    assert styles["bolt"] == styles_of({"bolt": "bolt"})["bolt"]
    assert styles["tip_adapter"] == styles_of({"tip_adapter": "tip_adapter"})["tip_adapter"]
    brightness = [sum(int(styles[rank]["color"][i : i + 2], 16) for i in (1, 3, 5)) for rank in ranks]
    assert brightness == sorted(brightness, reverse=True)
    many = styles_of({f"v{i}": "bolt" for i in range(40)})
    assert len({tuple(style.values()) for style in many.values()}) == 40
