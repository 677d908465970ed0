"""The sources of a cell: the datasets in the pool of a target, and how each source model is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bolt.protocol import Precision
from bolt.seeds import numpy_generator
from orchestrator.catalog import Catalog, CheckpointEntry, DatasetEntry, backbone_ref, dataset_ref
from orchestrator.catalog.backbone_entry import swap_activation
from orchestrator.catalog.location import Location
from orchestrator.catalog.references import listed_draw
from orchestrator.core.cell import BackboneRef, SourceRef
from orchestrator.core.recipes import SourceRecipe, adopted_source
from orchestrator.grid.schema import SourcesChoice

Pool = tuple[str, ...]
"""Names of the datasets whose models a cell may use as sources."""

GainOf = Callable[[str, SourceRef], float | None]
"""``(backbone, source) -> points that fine-tuning gained on the source's own task``; ``None`` if not known."""


@dataclass(frozen=True)
class SourcePlan:
    """How one source model is made: fine-tuned from a backbone by a resolved recipe, or adopted from a checkpoint."""

    backbone: BackboneRef
    recipe: SourceRecipe | CheckpointEntry


class SourceResolver:
    """Finds the source models of each cell. References are made once and shared by all cells of a grid.

    Attributes:
        catalog: the entries that a grid can name.
        dataset: name -> reference to the dataset. The reference to one of the user's own datasets depends on all files
            in its folder.
        backbone: (name, activation, precision) -> reference to the backbone. The activation is ``as_trained`` or
            ``swapped``, and the precision is the number format of the towers.
        models: (datasets, backbone, recipe, adopted) -> references to source models, one for each dataset. If
            ``adopted``, a checkpoint that the catalog has for a dataset is the model. Every other model is fine-tuned
            from the backbone by the recipe.
        listed: (dataset, k, seed) -> digest of the user's file that lists a support.
        plans: all source models that were referred to so far, and how they are made.
    """

    def __init__(self, catalog: Catalog, data_root: Path | None, gain_of: GainOf) -> None:
        self.catalog, self._gain_of = catalog, gain_of
        self.dataset = cache(lambda name: dataset_ref(catalog.datasets[name], data_root))
        self.listed = cache(lambda name, k, seed: listed_draw(catalog.datasets[name], data_root, k, seed))
        self.backbone, self.models = cache(self._backbone), cache(self._models)
        self.plans: dict[SourceRef, SourcePlan] = {}

    def _backbone(self, name: str, activation: str, precision: Precision | None) -> BackboneRef:
        entry = self.catalog.backbones[name]
        variant = entry if activation == "as_trained" else swap_activation(entry)
        return replace(backbone_ref(variant), precision=precision)

    def pool(self, choice: SourcesChoice, target: DatasetEntry, scored: Sequence[DatasetEntry], at: Location) -> Pool:
        """Return the datasets whose models a cell may use.

        The target and the scored datasets are left out, and so is every dataset with other splits of the same images.
        Under ``leave_group_out``, the datasets in the same ``kin`` groups are left out too.

        Raises ``UserError`` if sources are required and no dataset is left, and for a named dataset without training
        images.
        """
        tested = (target, *scored)
        groups = {entry.kin for entry in tested if entry.kin and choice.rule == "leave_group_out"}
        candidates = [entry for entry in self._candidates(choice, target, at) if entry.kin not in groups]
        pool = dict.fromkeys(entry.name for entry in candidates if not any(map(entry.shares_images, tested)))
        if not pool and choice.required:
            hint = "give the pool: sources: {rule: leave_one_out, domain: NAME} or {..., datasets: [...]}"
            raise at.error(f"{choice.rule} leaves no source for {target.name}", hint)
        return tuple(pool)

    def _candidates(self, choice: SourcesChoice, target: DatasetEntry, at: Location) -> list[DatasetEntry]:
        if choice.datasets is None:
            members = self.catalog.datasets_of(choice.domain or target.domain, at / "domain")
            return [entry for entry in members if entry.has_training_images]
        named = [self.catalog.dataset(name, at / "datasets" / i) for i, name in enumerate(choice.datasets)]
        for entry in named:
            if not entry.has_training_images:
                raise (at / "datasets").error(f"{entry.name} has no training images, so it cannot be a source")
        return named

    def with_gain(self, datasets: Pool, models: Sequence[SourceRef], least: float, backbone: str, at: Location) -> Pool:
        """Return the datasets whose models gain at least ``least`` points on their own task.

        Raises ``UserError`` if the gain of a model is not known, or if no model is left.
        """
        gains = {name: self._gain_of(backbone, model) for name, model in zip(datasets, models, strict=True)}
        known = {name: gain for name, gain in gains.items() if gain is not None}
        if unknown := [name for name in gains if name not in known]:
            what = f"the gain of the source models of {', '.join(unknown)} for {backbone} is not known"
            hint = "run the grid once without min_gain: it fine-tunes the models and measures them on their own task"
            raise (at / "min_gain").error(what, hint)
        if not (kept := tuple(name for name in datasets if known[name] >= least)):
            what = f"no source model gains {least:g} points; the best gains {max(known.values()):.2f}"
            raise (at / "min_gain").error(what)
        return kept

    def _models(
        self, datasets: Pool, backbone: BackboneRef, recipe: SourceRecipe, adopted: bool
    ) -> tuple[SourceRef, ...]:
        found = []
        for name in datasets:
            checkpoint = self.catalog.checkpoints.get((backbone.name, name)) if adopted else None
            if checkpoint is not None:
                plan = SourcePlan(replace(backbone, precision=None), checkpoint)
                ref = adopted_source(plan.backbone, name, checkpoint.sha256)
            else:
                entry = self.catalog.datasets[name]
                resolved = recipe.resolve(entry.fine_tune_epochs, entry.sizes.train)
                plan, ref = SourcePlan(backbone, resolved), resolved.source(backbone, self.dataset(name))
            self.plans[ref] = plan
            found.append(ref)
        return tuple(found)

    def images(self, datasets: Pool) -> tuple[SourceRef, ...]:
        """Return references to the datasets themselves, whose images a method meta-learns from."""
        return tuple(SourceRef(name, self.dataset(name).digest) for name in datasets)


def draw_sources(pool: Pool, count: int | None, target: str, seed: int, at: Location) -> Pool:
    """Return ``count`` datasets drawn from the pool at random, or the whole pool if ``count`` is ``None``.

    The draw depends on ``target`` and ``seed`` only. A smaller draw is part of a larger draw.

    Raises ``UserError`` if the pool has fewer than ``count`` datasets.
    """
    if count is None or not pool:
        return pool
    if count > len(pool):
        raise (at / "count").error(f"count is {count}, but {target} has {len(pool)} sources")
    chosen = numpy_generator("sources", target, seed).permutation(len(pool))[:count]
    return tuple(pool[index] for index in sorted(chosen.tolist()))
