"""The registered tracks: names, splits of supports, methods that they take, and images through the tower."""

import pytest

from bolt.methods import METHODS, TowerPasses
from bolt.protocol import PUBLISHED, STRICT
from orchestrator.report.registry import GROUP_TABLES
from orchestrator.tracks import TRACKS, Track, stored_track


def test_tracks_are_registered_under_their_names() -> None:
    assert {name: track.name for name, track in TRACKS.items()} == {name: name for name in TRACKS}
    declared = set().union(*(method.tracks for method in METHODS.values()))
    assert declared == {track.method_track or name for name, track in TRACKS.items()}


def test_lead_tables_are_in_the_reports_registry() -> None:
    tables = {table.name for table in GROUP_TABLES if table.section == "lead"}
    for track in TRACKS.values():
        assert set(track.lead_tables) <= tables


def test_a_stored_track_that_is_not_registered_goes_by_its_name() -> None:
    assert stored_track("tta") is TRACKS["tta"]
    assert stored_track("gone").title == "gone"


def test_only_published_supports_of_the_ood_track_are_of_the_test_split() -> None:
    splits = {(name, p.name): track.support_split(p) for name, track in TRACKS.items() for p in (STRICT, PUBLISHED)}
    assert [key for key, split in splits.items() if split == "test"] == [("ood", "published")]


def test_a_track_can_take_the_methods_of_another_with_their_defaults_there() -> None:
    variation = Track("variation", "a variation", method_track="tta")
    assert variation.takes(METHODS["atlas"])
    assert not variation.takes(METHODS["linear_probe"])
    assert variation.configure(METHODS["atlas"], {}) == METHODS["atlas"].configure({}, "tta")
    assert not Track("new", "new").takes(METHODS["atlas"])


def test_base_to_new_takes_the_few_shot_methods_that_can_name_classes() -> None:
    track = TRACKS["base_to_new"]
    assert track.takes(METHODS["lora"])
    assert not track.takes(METHODS["linear_probe"])  # it learns a row of each class
    assert not track.takes(METHODS["tent"])  # it has no support
    assert [track.base_classes(count) for count in (2, 5, 10)] == [1, 3, 5] if track.base_classes else False


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("zero_shot", TowerPasses()),
        ("bolt_pooled", TowerPasses(forward=100, training=0)),  # it selects the trusted images and trains nothing
        ("bolt", TowerPasses(forward=300, training=400)),
        ("tent", TowerPasses(forward=0, training=100)),
        ("tda", TowerPasses()),
        ("trans_clip", TowerPasses()),
        ("adamerging", TowerPasses(forward=0, training=500 * 32)),
    ],
)
def test_at_test_time_every_test_image_is_encoded(method: str, passes: TowerPasses) -> None:
    settings = METHODS[method].configure({"epochs": 2} if method == "bolt" else {}, "tta")
    assert TRACKS["tta"].tower_passes(METHODS[method], settings, 0, 100) == passes


@pytest.mark.parametrize(("track", "printed"), [("fewshot", [0, 4]), ("ood", [16, 4]), ("tta", [None, None])])
def test_the_k_under_which_the_paper_prints_a_cell(track: str, printed: list[int | None]) -> None:
    assert [TRACKS[track].published_shots(k) for k in (0, 4)] == printed
