"""The sources of a cell: which datasets are in the pool of a target, and how each source model is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bolt.methods import Method
from bolt.protocol import Precision
from bolt.seeds import numpy_generator
from orchestrator.catalog import Catalog, CheckpointEntry, DatasetEntry, backbone_ref, dataset_ref
from orchestrator.catalog.load_backbone import swap_activation
from orchestrator.catalog.location import Location
from orchestrator.core.cell import BackboneRef, DatasetRef, SourceRef
from orchestrator.core.recipes import SourceRecipe, adopted_source
from orchestrator.grid.schema import SourcesChoice

Pool = tuple[DatasetEntry, ...]

GainOf = Callable[[str, SourceRef], float | None]
"""``(backbone, source) -> what fine-tuning gained on its own task in points``, ``None`` if that is not known."""


@dataclass(frozen=True)
class SourcePlan:
    """How one source model is made: fine-tuned by a resolved recipe, or adopted from a checkpoint.

    Attributes:
        precision: number format of the fine-tuning; ``None`` for the default of the device and adopted checkpoints.
    """

    backbone: str
    dataset: str
    recipe: SourceRecipe | CheckpointEntry
    precision: Precision | None = None


class SourceTraining(NamedTuple):
    """How the source models of a cell are made: by a recipe or, if ``adopted``, from checkpoints of the catalog."""

    backbone: str
    recipe: SourceRecipe
    adopted: bool
    precision: Precision | None


class References:
    """References to catalog entries, each made once: that of a folder dataset lists all its files."""

    def __init__(self, catalog: Catalog, data_root: Path | None) -> None:
        self._catalog, self._data_root = catalog, data_root
        self._datasets: dict[str, DatasetRef] = {}
        self._backbones: dict[tuple[str, str, Precision | None], BackboneRef] = {}

    def dataset(self, entry: DatasetEntry) -> DatasetRef:
        """The name and digest of a dataset."""
        if entry.name not in self._datasets:
            self._datasets[entry.name] = dataset_ref(entry, self._data_root)
        return self._datasets[entry.name]

    def backbone(self, name: str, activation: str, precision: Precision | None = None) -> BackboneRef:
        """The reference of a backbone in a number format, with its activation ``as_trained`` or with the other one."""
        key = name, activation, precision
        if key not in self._backbones:
            entry = self._catalog.backbones[name]
            swapped = entry if activation == "as_trained" else swap_activation(entry)
            self._backbones[key] = replace(backbone_ref(swapped), precision=precision)
        return self._backbones[key]


class SourceResolver:
    """Finds the source models of each cell. Pools and references are computed once and shared by all cells of a grid.

    ``plans`` are all source models that were referred to so far, and how they are made.
    """

    def __init__(self, catalog: Catalog, references: References, gain_of: GainOf) -> None:
        self._catalog, self._references, self._gain_of = catalog, references, gain_of
        self.plans: dict[SourceRef, SourcePlan] = {}
        self._pools: dict[Any, Pool] = {}
        self._refs: dict[Any, tuple[SourceRef, ...]] = {}

    def pool(self, choice: SourcesChoice, target: DatasetEntry, scored: Sequence[DatasetEntry], at: Location) -> Pool:
        """The datasets whose models a cell may use.

        The target and the scored datasets are left out, and under ``leave_group_out`` the datasets of their ``kin``
        groups. Raises ``UserError`` if no dataset is left although sources are required, or if one has no training
        images.
        """
        tested = (target, *scored)
        names = tuple(entry.name for entry in tested)
        key = choice.required, choice.rule, choice.domain, choice.datasets, names
        if key not in self._pools:
            groups = {entry.kin for entry in tested if entry.kin and choice.rule == "leave_group_out"}
            candidates = self._candidates(choice, target, at)
            pool = {e.name: e for e in candidates if e.name not in names and e.kin not in groups}
            if not pool and choice.required:
                raise at.error(
                    f"{choice.rule} leaves no source for {target.name}",
                    "give the pool: sources: {rule: leave_one_out, domain: NAME} or {..., datasets: [...]}",
                )
            self._pools[key] = tuple(pool.values())
        return self._pools[key]

    def _candidates(self, choice: SourcesChoice, target: DatasetEntry, at: Location) -> list[DatasetEntry]:
        if choice.datasets is None:
            members = self._catalog.datasets_of(choice.domain or target.domain, at / "domain")
            return [entry for entry in members if entry.has_training_images]
        named = [self._catalog.dataset(name, at / "datasets" / i) for i, name in enumerate(choice.datasets)]
        for entry in named:
            if not entry.has_training_images:
                raise (at / "datasets").error(f"{entry.name} has no training images, so it cannot be a source")
        return named

    def references(self, method: Method, datasets: Pool, training: SourceTraining) -> tuple[SourceRef, ...]:
        """References to what a method reads of the datasets: their models or, to meta-learn from, their images."""
        reads_images = method.meta_recipe is not None
        key = reads_images, training, tuple(entry.name for entry in datasets)
        if key not in self._refs:
            if reads_images:
                refs = (SourceRef(entry.name, self._references.dataset(entry).digest) for entry in datasets)
            else:
                refs = (self._model(entry, training) for entry in datasets)
            self._refs[key] = tuple(refs)
        return self._refs[key]

    def with_gain(self, datasets: Pool, least: float | None, training: SourceTraining, at: Location) -> Pool:
        """The datasets whose models gain at least ``least`` points on their own task; all of them for ``None``.

        Raises ``UserError`` if the gain of a model is not known, or if no model is left.
        """
        if least is None:
            return datasets
        backbone = training.backbone
        gains = {entry.name: self._gain_of(backbone, self._model(entry, training)) for entry in datasets}
        known = {name: gain for name, gain in gains.items() if gain is not None}
        if unknown := [name for name in gains if name not in known]:
            raise (at / "min_gain").error(
                f"the gain of the source models of {', '.join(unknown)} for {backbone} is not known",
                "run the grid once without min_gain: it fine-tunes the models and measures them on their own task",
            )
        kept = tuple(entry for entry in datasets if known[entry.name] >= least)
        if not kept:
            raise (at / "min_gain").error(
                f"no source model gains {least:g} points; the best gains {max(known.values()):.2f}"
            )
        return kept

    def _model(self, entry: DatasetEntry, training: SourceTraining) -> SourceRef:
        backbone, recipe, adopted, precision = training
        as_trained = self._references.backbone(backbone, "as_trained", precision)  # under every protocol
        checkpoint = self._catalog.checkpoints.get((backbone, entry.name)) if adopted else None
        if checkpoint is not None:
            ref = adopted_source(replace(as_trained, precision=None), entry.name, checkpoint.sha256)
            self.plans[ref] = SourcePlan(backbone, entry.name, checkpoint)
        else:
            resolved = recipe.resolve(entry.fine_tune_epochs, entry.sizes.train)
            ref = resolved.source(as_trained, self._references.dataset(entry))
            self.plans[ref] = SourcePlan(backbone, entry.name, resolved, precision)
        return ref


def draw_sources(pool: Pool, count: int | None, target: DatasetEntry, seed: int, at: Location) -> Pool:
    """The whole pool, or ``count`` datasets of it, drawn by target and seed; a smaller draw is part of a larger one.

    Raises ``UserError`` if the pool has fewer datasets.
    """
    if count is None or not pool:
        return pool
    if count > len(pool):
        raise (at / "count").error(f"count is {count}, but {target.name} has {len(pool)} sources")
    chosen = numpy_generator("sources", target.name, seed).permutation(len(pool))[:count]
    return tuple(pool[index] for index in sorted(chosen.tolist()))
