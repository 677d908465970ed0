"""The layout of each of the paper's tables: what its lines and columns are, and which part of the paper it is."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.report.paper.published import Axis

AXES: tuple[Axis, ...] = ("domain", "backbone", "shots", "method", "dataset")


@dataclass(frozen=True)
class Layout:
    """How one table of accuracies is laid out.

    Attributes:
        label: the table's label in the paper's source, without ``tab:``.
        rows: the axes that name a line; the last one is the method.
        columns: the axis of the columns, after the axis of the groups above them if there are groups.
        split: the axis whose values get a table each when measured accuracies triple the number of lines.
    """

    label: str
    title: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    split: Axis | None = None


_BY_DATASET: tuple[Axis, ...] = ("backbone", "shots", "method")

LAYOUTS = (
    Layout("fewshot_general_rs_multicol", "Few-shot accuracy by domain", ("method",), ("domain", "shots")),
    Layout("ood_vitb32_k16", "Accuracy out of distribution, ViT-B/32", ("method",), ("dataset",)),
    Layout("OOD_extend_result", "Accuracy out of distribution, larger backbones", ("method",), ("backbone", "dataset")),
    Layout("tta_general", "Accuracy after test-time adaptation", ("method",), ("backbone",)),
    Layout("tta_general_ufm", "Accuracy after test-time adaptation by dataset", ("backbone", "method"), ("dataset",)),
    Layout("fewshot_general_detailed", "Few-shot accuracy by dataset, general", _BY_DATASET, ("dataset",), "backbone"),
    Layout(
        "fewshot_remote_detailed", "Few-shot accuracy by dataset, remote sensing", _BY_DATASET, ("dataset",), "backbone"
    ),
)

_DOMAINS = {"general": "General datasets", "remote_sensing": "Remote-sensing datasets", "imagenet": "ImageNet"}


def value_title(axis: Axis, value: str | int) -> str:
    """The title of a column, or of a group of columns, for one value of an axis."""
    if axis == "domain":
        return _DOMAINS.get(str(value), str(value))
    return f"{value}-shot" if axis == "shots" else str(value)
