"""The fields of a grid file. Names of datasets, methods and so on are looked up later, in ``expand.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StringConstraints, model_validator

from bolt.protocol import Precision
from orchestrator.analysis import SMALLEST_DIFFERENCE, CostKind
from orchestrator.catalog.validation import PositiveInt, StrictModel, printable
from orchestrator.tracks import MetricName
from orchestrator.util.errors import short_repr, shorten


def _as_list(value: Any) -> Any:
    """Return a list or tuple unchanged, and any other value as a tuple of one value."""
    if isinstance(value, str) and "," in value:
        raise ValueError(f"a list needs brackets: [{shorten(value.strip('()[] '))}]")
    return value if isinstance(value, list | tuple) else (value,)


def _as_seeds(value: Any) -> Any:
    if isinstance(value, int) and value > 1:
        raise ValueError(f"it may mean {value} seeds, [1, 2, ...], or the one seed [{value}]; write the list")
    return _as_list(value)


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]
Numbers = Annotated[tuple[PositiveInt, ...], BeforeValidator(_as_list), Field(min_length=1)]

Label = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(printable)]


class SourcesChoice(StrictModel):
    """The datasets whose source models a method may use.

    Attributes:
        rule: ``leave_one_out`` leaves out the target and the scored datasets. ``leave_group_out`` also leaves out all
            datasets in the ``kin`` groups of the target and the scored datasets.
        domain: the domain whose datasets are the pool; by default the target's domain.
        datasets: the names of the datasets in the pool, instead of a domain.
        count: number of datasets that are drawn from the pool at random, separately for each target and seed. By
            default, the whole pool is taken. A smaller draw is part of a larger draw.
        adopted: whether a checkpoint that the catalog names for a dataset replaces a fine-tuned model.
        required: whether a target without any source is an error. If not, the methods that need sources are left out
            for this target.
        min_gain: points that a source model must gain over the frozen tower on its own test images; models that gain
            less are left out. All models must have been built before, so that their gains are known.
    """

    rule: Literal["leave_one_out", "leave_group_out"] = "leave_one_out"
    domain: str | None = None
    datasets: Names | None = None
    count: PositiveInt | None = None
    adopted: StrictBool = True
    required: StrictBool = True
    min_gain: Annotated[float, Field(strict=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_rule(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_pool(self) -> SourcesChoice:
        if self.domain is not None and self.datasets is not None:
            raise ValueError("the pool is either a domain or a list of datasets, not both")
        return self


class MethodChoice(StrictModel):
    """One entry of ``methods``: ``NAME``, or ``NAME: {SETTING: VALUE, precision: FORMAT, as: LABEL}``.

    Attributes:
        name: name of the method.
        settings: the settings that differ from the method's defaults; ``preset`` selects a named group of settings.
        label: the value of ``as``: the name that reports give to the method with these settings.
        precision: number format of the towers in this method's cells; by default the block's number format.
    """

    name: str
    settings: dict[str, Any] = Field(default={})
    label: Label | None = None
    precision: Precision | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_entry(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, Mapping) or len(value) != 1:
            remedy = "write 'name' or 'name: {setting: value}', one method per entry"
            raise ValueError(f"{short_repr(value)} is not one method: {remedy}")
        ((name, settings),) = value.items()
        settings = {} if settings is None else settings
        if not isinstance(settings, Mapping):
            whose, found = shorten(str(name)), short_repr(settings)
            raise ValueError(f"the settings of {whose} are {found}; write them as {whose}: {{setting: value}}")
        own = {str(key): item for key, item in settings.items() if key not in ("as", "precision")}
        return {"name": str(name), "settings": own, "label": settings.get("as"), "precision": settings.get("precision")}


class Block(StrictModel):
    """One block: the product of its backbones, targets, methods, shots and seeds. ``docs/grids.md`` has an example.

    Attributes:
        track: how adaptation is measured: what a method is given and what is scored.
        backbones: names of backbones of the catalog.
        domains: the domains whose datasets are the targets.
        datasets: the names of the targets, instead of ``domains``.
        sources: the datasets whose source models a method may use: a rule, or a mapping.
        evaluate_on: the datasets that a cell is scored on, on the tracks ``ood`` and ``cross_dataset``, which need it.
        shots: k, the number of labelled images of each class; not on the ``tta`` track, which reads no labels.
        seeds: seeds of the support draw, from 1.
        methods: the methods to measure.
        protocol: the protocol of this block; by default the grid's protocol.
        precision: the number format of this block; by default the grid's number format.
    """

    track: str
    backbones: Names
    domains: Names | None = None
    datasets: Names | None = None
    sources: SourcesChoice = SourcesChoice()
    evaluate_on: Names | None = None
    shots: Numbers | None = None
    seeds: Annotated[tuple[PositiveInt, ...], BeforeValidator(_as_seeds), Field(min_length=1)] | None = None
    methods: Annotated[tuple[MethodChoice, ...], BeforeValidator(_as_list), Field(min_length=1)]
    protocol: Any = None
    precision: Precision | None = None


class VerdictChoice(StrictModel):
    """How methods are compared.

    Attributes:
        smallest_difference: the smallest difference of the metric that matters, in points.
        cost: the kind of cost that is compared to recommend the cheapest of the best methods. Methods that need no
            source models come first, whatever they cost.
        metric: the metric by which methods are compared; by default accuracy, or balanced accuracy on the track
            ``imbalanced``.
    """

    smallest_difference: Annotated[float, Field(strict=True, gt=0, le=100)] = SMALLEST_DIFFERENCE
    cost: CostKind = "operations"
    metric: MetricName | None = None


class GridFile(StrictModel):
    """A grid file. The blocks are checked one by one later, so that messages can name a block.

    Attributes:
        title: the title of the grid in reports and on the terminal.
        description: the purpose of the grid, in a sentence or two.
        include: names of grids, or paths relative to this file; the cells of these grids are part of this grid.
        protocol: how cells are measured: ``strict``, ``published``, or ``{name: strict, SWITCH: VALUE}``.
        precision: number format of everything that runs a tower: ``float32``, ``tf32`` or ``bfloat16``; by default the
            device's number format.
        fine_tuning: the fields of the source models' recipe that differ from the default.
        verdict: how methods are compared.
        race: whether measuring stops for a method that can no longer be the best; ``--no-race`` measures all cells.
        blocks: each block is a product of its lists; the grid is the union of its blocks.
    """

    title: str
    description: str = ""
    include: Names = ()
    protocol: Any = "strict"
    precision: Precision | None = None
    fine_tuning: dict[str, Any] = Field(default={})
    verdict: VerdictChoice = VerdictChoice()
    race: StrictBool = False
    blocks: tuple[dict[str, Any], ...] = ()

    @model_validator(mode="after")
    def _not_empty(self) -> GridFile:
        if not self.blocks and not self.include:
            raise ValueError("the grid is empty: it needs blocks, or other grids to include")
        if not self.blocks and (idle := sorted({"protocol", "precision", "fine_tuning"} & self.model_fields_set)):
            why = f"the grid has no blocks of its own, and each included grid keeps its {idle[0]} (--set changes it)"
            raise ValueError(f"{idle[0]} has no effect: {why}")
        return self
