"""What the report says of costs and images: tables and captions of the frontier."""

from dataclasses import replace

from orchestrator.report.figures.costs import accuracy_against_costs
from orchestrator.report.tables.efficiency import data_efficiency_table, frontier_table
from tests.helpers.small_results import arrange, grid

PARAMETERS = {"zero_shot": 0, "linear_probe": 9, "bolt": 700, "lora": 7000}


def results() -> list:  # type: ignore[type-arg]
    """BOLT is better than LoRA and has fewer parameters; the linear probe has fewest of those that are trained."""
    made = grid({"zero_shot": 50.0, "linear_probe": 55.0, "bolt": 62.0, "lora": 61.0}, ks=(1, 4, 16))
    return [replace(one, trainable_parameters=PARAMETERS[one.cell.method.name]) for one in made]


def test_the_frontier_is_named_in_table_and_figures() -> None:
    arranged = arrange(results())
    (group,) = arranged.groups
    table = frontier_table(arranged, group, 16)
    frontier = {row[0].code for row in table.rows if "parameters" in row[1].text}
    assert frontier == {"Zero-shot", "Linear probe", "BOLT"}
    assert [row[0].code for row in table.rows][:2] == ["BOLT", "lora"]
    operations, others = accuracy_against_costs(arranged, group)
    assert "fewer operations than" in operations.caption
    assert "fewer trainable parameters than Zero-shot" in others.caption


def test_images_for_the_same_score_are_counted() -> None:
    """BOLT gains 3 points from k = 1 to 4 and 12 from 4 to 16; LoRA has one point less at 16."""
    arranged = arrange(results())
    (group,) = arranged.groups
    table = data_efficiency_table(arranged, group)
    by_method = {row[0].code: row for row in table.rows}
    column = table.header.index("images for BOLT")
    found = by_method["lora"][column].value
    assert found is not None
    assert abs(found - 4 * 2 ** (2 * 11 / 12)) < 0.5
    assert by_method["lora"][column].text.startswith(f"{found:.2g} (")
