"""Every mistake in a grid file is reported with its location and what would be right."""

from pathlib import Path

import pytest

from orchestrator.catalog import Catalog
from orchestrator.grid import load_grid
from orchestrator.util.errors import UserError
from tests.helpers.small_grid import GRID, LoadGrid

METHOD = "blocks[0].methods[1]"
WARM = GRID.replace("epochs: 2", "epochs: 2, warmup_steps: 0")
TITLE, SHOTS = "title: Test", "    shots:"
PROTOCOL = "title: Test\nprotocol: {{name: strict, {0}}}".format
SOURCES = "    sources: {0}\n    shots:".format
ONE_SOURCE = (
    "  - {track: fewshot, backbones: tiny-clip, datasets: two, sources: {rule: leave_one_out, count: 1}, shots: 1,"
    " seeds: 1, methods: [trained]}"
)
MISTAKES: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("- trained", "- traned", METHOD, ("'traned'", "'trained'")),
    ("- trained", "- trained: {rat: 1}", METHOD, ("setting of trained", "'rat'", "'rate'")),
    ("- trained", "- trained: {rate: fast}", METHOD, ("trained.rate", "'fast'", "float")),
    ("- trained", "- trained: {rate: -1}", METHOD, ("rate", "-1.0", "above zero")),
    ("- trained", "- linear_probe: {learning_rate: 0.01}", METHOD, ("search is 'support'", "set search to 'fixed'")),
    ("- trained", "- trained: 3", METHOD, ("trained", "3")),
    ("- trained", "- {trained: {}, plain: {}}", METHOD, ("not one method",)),
    ("- trained", "- unlabelled", METHOD, ("unlabelled", "fewshot", "methods that can")),
    ("two, four", "twwo, four", "blocks[0].datasets[1]", ("'twwo'", "'two'")),
    ("datasets: [one, two, four]", "domains: [litle]", "blocks[0].domains[0]", ("'litle'", "'little'")),
    ("datasets: [one, two, four]", "", "blocks[0]", ("domains", "datasets")),
    ("datasets: [one, two, four]", "datasets: [one]\n    domains: [little]", "blocks[0]", ("domains", "datasets")),
    ("tiny-clip", "tiny-clipp", "blocks[0].backbones[0]", ("'tiny-clipp'", "'tiny-clip'")),
    ("fewshot", "few-shot", "blocks[0].track", ("'few-shot'", "'fewshot'")),
    ("fewshot", "[fewshot]", "blocks[0].track", ("['fewshot']", "string")),
    ("    shots:", "    shot:", "blocks[0]", ("'shot'", "'shots'")),
    (TITLE, "titel: Test", "", ("'titel'", "'title'")),
    ("title: Test\n", "", "title", ("needed",)),
    (TITLE, f"{TITLE}\nprotocol: strickt", "protocol", ("'strickt'", "'strict'")),
    (TITLE, PROTOCOL("sigma: relu"), "protocol", ("'sigma'", "'sigma_sign'")),
    (TITLE, PROTOCOL("sigma_sign: up"), "protocol.sigma_sign", ("'free'", "'relu'", "'up'")),
    (TITLE, PROTOCOL("schedule_offset: 1"), "protocol.schedule_offset", ("false", "true", "1")),
    (TITLE, f"{TITLE}\nprotocol: {{sigma_sign: relu}}", "protocol", ("name",)),
    ("epochs: 2", "epoch: 2", "fine_tuning", ("'epoch'", "'epochs'")),
    ("epochs: 2", "epochs: 0", "fine_tuning", ("epochs", "0")),
    ("epochs: 2", "epochs: 2.5", "fine_tuning", ("epochs", "2.5", "integer")),
    ("epochs: 2", "learning_rate: fast", "fine_tuning", ("learning_rate", "'fast'")),
    ("epochs: 2", "learning_rate: .inf", "fine_tuning", ("learning_rate", "finite")),
    ("- trained", "- trained: {rate: .inf}", METHOD, ("trained.rate", "finite")),
    ("- trained", "- trained: {rate: .nan}", METHOD, ("trained.rate", "finite")),
    ("seeds: [1, 2]", f"seeds: {list(range(1, 60_001))}", "blocks[0]", ("cells", "100,000", "fewer seeds")),
    ("epochs: 2", "clip_norm: 0", "fine_tuning", ("clip_norm", "greater than 0")),
    ("epochs: 2", "warmup_steps: -1", "fine_tuning", ("warmup_steps", "-1")),
    ("epochs: 2", "batch_size: 0", "fine_tuning", ("batch_size", "0")),
    ("[1, 4]", "[1, 0]", "blocks[0].shots[1]", ("0", "greater than or equal to 1")),
    ("[1, 4]", "[1, four]", "blocks[0].shots[1]", ("'four'", "integer")),
    ("[1, 4]", "[true]", "blocks[0].shots[0]", ("True", "integer")),
    ("[1, 4]", "[]", "blocks[0].shots", ("[]",)),
    ("[1, 4]", "[1, 21]", "blocks[0].shots", ("21", "one", "20", "short_classes: take_all")),
    ("shots: [1, 4]", "", "blocks[0].shots", ("needed", "trained")),
    ("seeds: [1, 2]", "", "blocks[0].seeds", ("needed", "trained")),
    ("seeds: [1, 2]", "seeds: [0]", "blocks[0].seeds[0]", ("0", "greater than or equal to 1")),
    ("seeds: [1, 2]", "seeds: (1, 2)", "blocks[0].seeds", ("brackets", "[1, 2]")),
    ("seeds: [1, 2]", "seeds: 3", "blocks[0].seeds", ("3 seeds, [1, 2, ...]", "the one seed [3]")),
    ("- trained", "- Trained", METHOD, ("'Trained'", "did you mean 'trained'")),
    ("one, two, four", "wide", "blocks[0].sources", ("leave_one_out", "wide", "domain: NAME")),
    ("one, two, four", "one, seen", "blocks[0]", ("seen", "training images")),
    (SHOTS, SOURCES("leave_two_out"), "blocks[0].sources.rule", ("'leave_two_out'", "'leave_one_out'")),
    (SHOTS, SOURCES("{domain: litle}"), "blocks[0].sources.domain", ("'litle'", "'little'")),
    (SHOTS, SOURCES("{datasets: [oen]}"), "blocks[0].sources.datasets[0]", ("'oen'", "'one'")),
    (SHOTS, SOURCES("{datasets: [seen]}"), "blocks[0].sources.datasets", ("seen",)),
    (SHOTS, SOURCES("{domain: little, datasets: [one]}"), "blocks[0].sources", ("domain", "list of datasets")),
    ("    shots:", "    evaluate_on: [two]\n    shots:", "blocks[0].evaluate_on", ("ood",)),
    (TITLE, f"{TITLE}\ninclude: [demoo]", "include[0]", ("'demoo'", "'demo'")),
    (TITLE, f"{TITLE}\ninclude: [g]", "include[0]", ("unknown grid 'g'", "give g.yaml")),
    (TITLE, f"{TITLE}\ninclude: [no/such.yaml]", "include[0]", ("no/such.yaml",)),
    (TITLE, f"{TITLE}\ninclude: [g.yaml]", "include[0]", ("circle", "g -> g")),
    ("- trained", "- trained\n      - trained: {as: again}", "blocks[0].methods[2]", ("twice", "no label", "'again'")),
    ("- trained", "- trained: {as: x}\n      - trained: {rate: 1, as: x}", "blocks[0].methods[2]", ("label 'x'",)),
    ("- trained", "- trained: {as: x}\n      - trained: {rate: 1, as: ' x '}", "blocks[0].methods[2]", ("label 'x'",)),
    ("- trained", "- trained: {as: on}", f"{METHOD}.label", ("True is not text", "in quotes")),
    ("- trained", "- trained: {as: plain}", METHOD, ("'plain'", "two methods", "blocks[0].methods[0]")),
    ("- trained", f"- trained\n{ONE_SOURCE}", "blocks[1].methods[0]", ("label 'trained'", "as: LABEL")),
    ("fewshot", "ood\n    evaluate_on: [one, one]", "blocks[0].evaluate_on", ("one", "twice")),
    ("fewshot", "ood", "blocks[0].evaluate_on", ("scored on other datasets", "names none")),
    (SHOTS, SOURCES("{min_gain: true}"), "blocks[0].sources.min_gain", ("True", "number")),
    (TITLE, f"{TITLE}\nverdict: {{smallest_difference: yes}}", "verdict.smallest_difference", ("True", "number")),
    ("- track", "  track", "blocks", ("list", "'track'")),
    ("    shots: [1, 4]", "\tshots: [1, 4]", "line 8, column 1", ("not valid YAML", "tab", "spaces")),
    ("    shots: [1, 4]", "   shots: [1, 4]", "line 8, column 4", ("not valid YAML",)),
    (TITLE, "title: !!python/object/apply:os.system [ls]", "line 2, column 8", ("tags", "refused")),
    ("seeds: [1, 2]", "seeds: [1]\n    seeds: [2]", "line 10, column 5", ("'seeds'", "twice")),
    ("shots: [1, 4]", "shots: [1, 010]", "line 8, column 16", ("'010'", "two meanings")),
    ("seeds: [1, 2]", "seeds: 1:30", "line 9, column 12", ("'1:30'", "two meanings")),
    (TITLE, "title: Rates: two", "line 2, column 13", ("not valid YAML", "quotes")),
    (TITLE, "title: [", "line 4, column 1", ("not valid YAML",)),
]
"""What is replaced in the grid, by what, the location that the error names, and facts of its message."""


@pytest.mark.parametrize(("old", "new", "where", "facts"), MISTAKES)
def test_a_mistake_has_its_location(load: LoadGrid, old: str, new: str, where: str, facts: tuple[str, ...]) -> None:
    assert old in GRID
    with pytest.raises(UserError) as caught:
        load(GRID.replace(old, new, 1))
    joint = ", " if where.startswith("line") else ": "
    assert caught.value.where == (f"g.yaml{joint}{where}" if where else "g.yaml")
    message = f"{caught.value.what} {caught.value.hint}"
    assert [fact for fact in facts if fact not in message] == []


def test_short_classes_can_be_taken_whole(load: LoadGrid) -> None:
    text = GRID.replace("[one, two, four]", "[three]").replace("[1, 4]", "[8]")
    with pytest.raises(UserError) as caught:
        load(text)
    assert "at most 5 training images\n" in str(caught.value)
    assert "protocol: {name: strict, short_classes: take_all}" in str(caught.value)
    assert load(text + "    protocol: {name: strict, short_classes: take_all}\n").cells
    assert load(text, set_=["protocol.short_classes=take_all"]).cells
    assert load("protocol: published\n" + text).cells


def test_whole_files_are_refused(load: LoadGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h.yaml").write_text("title: H\ninclude: g.yaml\n", encoding="utf-8")
    with pytest.raises(UserError, match="in a circle: g -> h -> g"):
        load("title: G\ninclude: [h.yaml]\n")
    (tmp_path / "h.yaml").write_bytes("title: Grün\n".encode("latin-1"))
    with pytest.raises(UserError, match="save the file as UTF-8"):
        load("title: G\ninclude: [h.yaml]\n")
    with pytest.raises(UserError, match="the grid is empty"):
        load("title: Nothing\n")
    monkeypatch.setattr("orchestrator.grid.load.MOST_CELLS", 8)
    with pytest.raises(UserError, match="the grid has more than 8 cells"):  # also of many blocks
        load(GRID)


@pytest.mark.parametrize(
    ("name", "says"),
    [("dmo", "unknown grid 'dmo'\n  did you mean 'demo'"), ("nowhere/mine.yaml", "there is no grid file")],
)
def test_an_unknown_grid_suggests_the_nearest(name: str, says: str, catalog: Catalog) -> None:
    with pytest.raises(UserError, match=says):
        load_grid(name, catalog)


def test_a_verdict_of_an_included_grid_is_not_dropped_without_a_word(load: LoadGrid, tmp_path: Path) -> None:
    (tmp_path / "h.yaml").write_text("title: H\ninclude: [smoke]\nverdict: {metric: macro_f1}\n", encoding="utf-8")
    (note,) = load("title: G\ninclude: [h.yaml]\n").notes
    assert note.endswith("h.yaml does not take over its verdict")
    assert not load("title: G\ninclude: [h.yaml]\nverdict: {metric: macro_f1}\n").notes


def test_a_protocol_over_included_grids_alone_is_refused(load: LoadGrid) -> None:
    """Included grids keep their own, so all cells were strict."""
    assert load("title: Test\ninclude: [smoke]").cells
    for field in ("protocol: published", "precision: bfloat16", "fine_tuning: {epochs: 2}"):
        with pytest.raises(UserError, match=f"{field.partition(':')[0]} has no effect"):
            load(f"title: Test\ninclude: [smoke]\n{field}")


def test_set_wakes_an_idle_setting_of_the_file_and_may_be_idle_in_some_entries(load: LoadGrid) -> None:
    """No view of the test images could be set in a grid that also measures ``dmn`` on the few-shot track."""
    text = GRID.replace("- trained", "- linear_probe: {learning_rate: 0.01}")
    assert load(text, set_=["linear_probe.search=fixed"]).cells
    assert load(text, set_=["protocol=published"]).cells
    rate = ["linear_probe.learning_rate=0.01"]
    with pytest.raises(UserError, match="learning_rate has no effect"):
        load(GRID.replace("- trained", "- linear_probe"), set_=rate)
    fixed = "linear_probe: {search: fixed}"
    for methods in (f"- {fixed}\n      - linear_probe", f"- linear_probe\n      - {fixed}"):
        assert load(GRID.replace("- trained", methods), set_=rate).cells


def test_settings_that_a_switch_overrides_are_noted(load: LoadGrid) -> None:
    """A refusal would keep a grid from being measured under another protocol, so its plan has a line."""
    text = GRID.replace("- trained", "- lora: {rank: 4}\n      - lora")
    assert not load(text).notes
    (note,) = load(text, set_=["protocol=published"]).notes
    assert "lora.rank" in note
    assert "lora: as_published" in note


def test_a_switch_of_a_method_that_a_block_lacks_is_noted(load: LoadGrid) -> None:
    text = GRID.replace("- trained", "- lora")
    (note,) = load(text, set_=["protocol.atlas=as_published", "protocol.lora=as_published"]).notes
    assert note.startswith("note: the switch atlas makes")
    auto = "- auto: {candidates: [lora, zero_shot]}"
    assert not load(GRID.replace("- trained", auto), set_=["protocol.lora=as_published"]).notes
    assert not load(text, set_=["protocol=published"]).notes  # a whole protocol


@pytest.mark.parametrize(
    ("switch", "value", "reader"),
    [("baseline_crop", "light", "lora"), ("validation", "whole", "ape_t"),
     ("meta_scoring", "validation", "meta_init: {meta_support: 4, meta_query: 4}"),
     ("config_selection", "best_on_test", "linear_probe"), ("sigma_sign", "relu", "bolt_pooled"),
     ("task_count_basis", "padded", "bolt"), ("alpha_views", "augmented", "ties"), ("schedule_offset", "true", "bolt")],
)  # fmt: skip
def test_a_switch_that_no_method_of_a_block_reads_is_noted(
    switch: str, value: str, reader: str, load: LoadGrid
) -> None:
    changed = [f"protocol.{switch}={value}"]
    (note,) = load(WARM.replace("- trained", "- zero_shot"), set_=changed).notes
    assert note.startswith(f"note: the switch {switch} makes")
    assert not load(WARM.replace("- trained", f"- {reader}"), set_=changed).notes


def test_a_switch_of_test_time_is_noted_on_any_other_track(load: LoadGrid) -> None:
    changed = ["protocol.tta_alpha=test_labels", "protocol.atlas_tta=as_published"]
    text = WARM.replace("- trained", "- atlas").replace("- plain", "- bolt")
    assert len(load(text, set_=changed).notes) == 2
    assert not load(text.replace("fewshot", "tta").replace("shots: [1, 4]", ""), set_=changed).notes


def test_a_value_of_set_without_effect_names_the_method_once(load: LoadGrid) -> None:
    text = GRID.replace("- trained", "- linear_probe")
    for value, said in (("linear_probe.learning_rate=0.01", "has no effect"), ("linear_probe.epochs=x", "is 'x'")):
        with pytest.raises(UserError, match=said) as refused:
            load(text, set_=[value])
        assert str(refused.value).count("linear_probe") == 1


@pytest.mark.parametrize("text", ["1..3", "1-3", "1:3", "1...3", "3-1"])
def test_a_range_of_another_tool_is_answered_with_the_list(load: LoadGrid, text: str) -> None:
    with pytest.raises(UserError, match=r"--set seeds=\[1,2,3\]"):
        load(set_=[f"seeds={text}"])
