"""From a block to its cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from bolt.methods import METHODS, Method, UnknownName
from bolt.protocol import STRICT, Protocol
from bolt.seeds import numpy_generator
from orchestrator.catalog import Catalog, CheckpointEntry, DatasetEntry, backbone_ref, dataset_ref
from orchestrator.catalog.load_backbone import swap_activation
from orchestrator.catalog.location import Location
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, MethodRef, SourceRef
from orchestrator.core.recipes import SourceRecipe, adopted_source
from orchestrator.grid.overrides import Overrides
from orchestrator.grid.schema import Block, MethodChoice, SourcesChoice, resolve_protocol
from orchestrator.tracks import TRACKS, Track
from orchestrator.util.errors import UserError, unknown_name


@dataclass(frozen=True)
class SourcePlan:
    """How a source model is made: on which backbone and dataset, by which (resolved) recipe or of which checkpoint."""

    backbone: str
    dataset: str
    recipe: SourceRecipe | CheckpointEntry


@dataclass(frozen=True)
class Planned:
    """A cell with what the grid says about it beyond its identity."""

    cell: Cell
    label: str | None
    location: Location


@dataclass
class Expander:
    """Expands blocks against one catalog; identities are computed once and shared by all cells.

    Attributes:
        sources: every source any cell uses, and how it is made.
    """

    catalog: Catalog
    data_root: Path | None
    overrides: Overrides
    sources: dict[SourceRef, SourcePlan] = field(default_factory=dict)
    _datasets: dict[str, DatasetRef] = field(default_factory=dict)
    _backbones: dict[tuple[str, str], BackboneRef] = field(default_factory=dict)
    _pools: dict[Any, tuple[DatasetEntry, ...]] = field(default_factory=dict)
    _source_refs: dict[Any, tuple[SourceRef, ...]] = field(default_factory=dict)

    def cells(self, block: Block, protocol: Any, recipe: SourceRecipe, location: Location) -> Iterator[Planned]:
        """The block's cells, duplicates included.

        Raises ``UserError`` for every name that does not exist and every combination that cannot be measured.
        """

        def at(name: str) -> Location:
            return self.overrides.location(name, location / name)

        stated = protocol if block.protocol is None else block.protocol
        chosen = resolve_protocol(stated, at("protocol"))
        if self.overrides.protocol:
            chosen = resolve_protocol(self.overrides.on_protocol(stated), self.overrides.option("protocol"))
        if block.track not in TRACKS:
            raise unknown_name("track", block.track, TRACKS, where=str(at("track")))
        track = TRACKS[block.track]
        for index, name in enumerate(block.backbones):
            self.catalog.backbone(name, str(at("backbones") / index))
        targets = self._targets(block, location)
        methods = [
            (self._method(choice, track, at("methods") / index), _label(choice), at("methods") / index)
            for index, choice in enumerate(block.methods)
        ]
        self._check_support(block, chosen, targets, [method for (method, _), _, _ in methods], location)
        shots = block.shots or (0,)
        seeds = block.seeds or (0,)
        for backbone, target in product(block.backbones, targets):
            evaluate_on = self._evaluated(block, target, at("evaluate_on"))
            for (method, ref), label, method_location in methods:
                pool: tuple[DatasetEntry, ...] = ()
                if method.uses_sources:
                    pool = self._pool(block.sources, target, evaluate_on, at("sources"))
                    _check_episodes(method, ref, pool, method_location)
                for k, seed in product(shots, seeds) if method.uses_support else ((0, 0),):
                    drawn = _subset(pool, block.sources, target, seed, at("sources"))
                    cell = Cell(
                        track=block.track,
                        protocol=chosen,
                        backbone=self._backbone(backbone, chosen),
                        domain=target.domain,
                        dataset=self._dataset(target),
                        evaluate_on=tuple(self._dataset(entry) for entry in evaluate_on),
                        sources_rule=block.sources.rule if method.uses_sources else "none",
                        sources=self._sources(method, backbone, drawn, recipe, block.sources.adopted),
                        shots=k,
                        method=ref,
                        seed=seed,
                    )
                    yield Planned(cell, label, method_location)

    def _targets(self, block: Block, location: Location) -> list[DatasetEntry]:
        """The datasets a block adapts to: those it names, or the trainable ones of its domains."""
        if (block.domains is None) == (block.datasets is None):
            raise UserError("a block names its targets by either domains or datasets", where=str(location))
        if block.datasets is not None:
            at = self.overrides.location("datasets", location / "datasets")
            return [self.catalog.dataset(name, str(at / i)) for i, name in enumerate(block.datasets)]
        targets = []
        at = self.overrides.location("domains", location / "domains")
        for index, domain in enumerate(block.domains or ()):
            members = [
                entry for entry in self.catalog.datasets_of(domain, str(at / index)) if entry.has_training_images
            ]
            if not members:
                raise UserError(f"domain {domain} has no dataset to adapt to", where=str(at / index))
            targets += members
        return targets

    def _method(self, choice: MethodChoice, track: Track, location: Location) -> tuple[Method, MethodRef]:
        """A method and its identity, every setting included."""
        if choice.name not in METHODS:
            raise unknown_name("method", choice.name, METHODS, where=str(location))
        method = METHODS[choice.name]
        if not track.takes(method):
            able = sorted(name for name, other in METHODS.items() if track.takes(other))
            raise UserError(
                f"{method.name} cannot be measured on the {track.name} track",
                where=str(location),
                hint=f"methods that can: {', '.join(able) or 'none yet'}",
            )
        settings = _configured(method, choice.settings, track, location)
        overriding = self.overrides.methods.get(method.name)
        if overriding:
            changes = {**choice.settings, **overriding}
            settings = _configured(method, changes, track, self.overrides.option(method.name))
        pairs = sorted((f.name, getattr(settings, f.name)) for f in dataclasses.fields(settings))
        return method, MethodRef(method.name, method.version, tuple(pairs))

    def _check_support(
        self,
        block: Block,
        protocol: Protocol,
        targets: Iterable[DatasetEntry],
        methods: Iterable[Method],
        location: Location,
    ) -> None:
        """Whether every support that the block asks for can be drawn."""
        shots_at, seeds_at = (self.overrides.location(name, location / name) for name in ("shots", "seeds"))
        labelled = TRACKS[block.track].gives_support
        if block.shots is not None and not labelled:
            raise UserError(f"the {block.track} track reads no labels, so it takes no shots", where=str(shots_at))
        for index, k in enumerate(block.shots or ()):
            if k < 1:
                raise UserError(f"k is {k}; at least one image per class is needed", where=str(shots_at / index))
        for index, seed in enumerate(block.seeds or ()):
            if seed < 1:
                raise UserError(f"the seed is {seed}; seeds count from 1", where=str(seeds_at / index))
        needy = [method.name for method in methods if method.uses_support]
        if not needy:
            return
        if block.seeds is None:
            raise UserError(f"this field is needed: {needy[0]} draws a support", where=str(location / "seeds"))
        if not labelled:
            return
        if block.shots is None:
            raise UserError(f"this field is needed: {needy[0]} learns from a support", where=str(location / "shots"))
        for entry in targets:
            if not entry.has_training_images:
                raise UserError(
                    f"{entry.name} has no training images; it can only be evaluated on", where=str(location)
                )
            if protocol.short_classes == "refuse" and max(block.shots) > entry.max_shots:
                raise UserError(
                    f"k is {max(block.shots)}, but the smallest class of {entry.name} has at most "
                    f"{entry.max_shots} training images",
                    where=str(shots_at),
                    hint="leave the dataset to a block of its own with "
                    f"protocol: {{name: {protocol.name.partition('+')[0]}, short_classes: take_all}}",
                )

    def _evaluated(self, block: Block, target: DatasetEntry, location: Location) -> list[DatasetEntry]:
        """The datasets a cell is scored on."""
        if block.evaluate_on is None:
            return [target]
        if not TRACKS[block.track].scores_variants:
            able = " and ".join(track.name for track in TRACKS.values() if track.scores_variants)
            raise UserError(f"only the {able} track is scored on other datasets than its target", where=str(location))
        entries = [self.catalog.dataset(name, str(location / i)) for i, name in enumerate(block.evaluate_on)]
        for index, entry in enumerate(entries):
            unknown = sorted(set(_words(entry)) - set(_words(target)) if _words(target) else ())
            if unknown or entry.classes > target.classes:
                which = f"the class {unknown[0]!r}" if unknown else f"{entry.classes} classes"
                raise UserError(
                    f"{entry.name} has {which}, which {target.name} with its {target.classes} does not have; "
                    "what is adapted to one cannot be scored on the other",
                    where=str(location / index),
                )
        return entries

    def _pool(
        self, choice: SourcesChoice, target: DatasetEntry, evaluated: list[DatasetEntry], location: Location
    ) -> tuple[DatasetEntry, ...]:
        """The pool of a target: all but the target, what is scored on, and under the group rule their kin."""
        key = (choice.rule, choice.domain, choice.datasets, target.name, *(e.name for e in evaluated))
        if key not in self._pools:
            if choice.datasets is not None:
                at = location / "datasets"
                pool = [self.catalog.dataset(name, str(at / i)) for i, name in enumerate(choice.datasets)]
                empty = [entry.name for entry in pool if not entry.has_training_images]
                if empty:
                    raise UserError(f"{empty[0]} has no training images, so it cannot be a source", where=str(at))
            else:
                where = str(location / "domain")
                pool = [
                    e for e in self.catalog.datasets_of(choice.domain or target.domain, where) if e.has_training_images
                ]
            held_out = {entry.name for entry in (target, *evaluated)}
            kin = {e.kin for e in (target, *evaluated) if e.kin} if choice.rule == "leave_group_out" else set()
            left = [entry for entry in pool if entry.name not in held_out and entry.kin not in kin]
            if not left:
                raise UserError(
                    f"{choice.rule} leaves no source for {target.name}",
                    where=str(location),
                    hint="give the pool: sources: {rule: leave_one_out, domain: NAME} or {..., datasets: [...]}",
                )
            self._pools[key] = tuple({entry.name: entry for entry in left}.values())
        return self._pools[key]

    def _sources(
        self, method: Method, backbone: str, pool: tuple[DatasetEntry, ...], recipe: SourceRecipe, adopted: bool
    ) -> tuple[SourceRef, ...]:
        """A method's sources: the models of the pool, adopted or fine-tuned, or, to meta-learn from, its images."""
        key = (method.meta_recipe is not None, backbone, tuple(entry.name for entry in pool), recipe, adopted)
        if key not in self._source_refs:
            if method.meta_recipe is not None:
                refs = tuple(SourceRef(entry.name, self._dataset(entry).digest) for entry in pool)
            else:
                refs = tuple(self._source(backbone, entry, recipe, adopted) for entry in pool)
            self._source_refs[key] = refs
        return self._source_refs[key]

    def _source(self, backbone: str, entry: DatasetEntry, recipe: SourceRecipe, adopted: bool) -> SourceRef:
        # Sources are fine-tuned with the activation of their weights, under every protocol.
        as_trained = self._backbone(backbone, STRICT)
        checkpoint = self.catalog.checkpoints.get((backbone, entry.name)) if adopted else None
        if checkpoint is not None:
            ref = adopted_source(as_trained, entry.name, checkpoint.sha256)
            self.sources[ref] = SourcePlan(backbone, entry.name, checkpoint)
            return ref
        resolved = recipe.resolve(entry.fine_tune_epochs, entry.sizes.train)
        ref = resolved.source(as_trained, self._dataset(entry))
        self.sources[ref] = SourcePlan(backbone, entry.name, resolved)
        return ref

    def _backbone(self, name: str, protocol: Protocol) -> BackboneRef:
        if (name, protocol.activation) not in self._backbones:
            entry = self.catalog.backbones[name]
            meant = entry if protocol.activation == "as_trained" else swap_activation(entry)
            self._backbones[name, protocol.activation] = backbone_ref(meant)
        return self._backbones[name, protocol.activation]

    def _dataset(self, entry: DatasetEntry) -> DatasetRef:
        if entry.name not in self._datasets:
            self._datasets[entry.name] = dataset_ref(entry, self.data_root)
        return self._datasets[entry.name]


def _subset(
    pool: tuple[DatasetEntry, ...], choice: SourcesChoice, target: DatasetEntry, seed: int, location: Location
) -> tuple[DatasetEntry, ...]:
    """The sources a cell gets: the whole pool, or so many of it, drawn by target and seed."""
    if choice.count is None or not pool:
        return pool
    if choice.count > len(pool):
        raise UserError(
            f"count is {choice.count}, but {target.name} has {len(pool)} sources", where=str(location / "count")
        )
    chosen = numpy_generator("sources", target.name, seed).permutation(len(pool))[: choice.count]
    return tuple(pool[index] for index in sorted(chosen.tolist()))


def _check_episodes(method: Method, ref: MethodRef, pool: Iterable[DatasetEntry], location: Location) -> None:
    """Whether every dataset that a start is meta-learned on has the images of one episode."""
    if method.meta_recipe is None:
        return
    recipe = method.meta_recipe(method.configure(ref.settings_dict()))
    wanted = recipe.support + recipe.query
    for entry in pool:
        if entry.sizes.train < wanted:
            raise UserError(
                f"an episode of {method.name} has {wanted} images, "
                f"but {entry.name} has {entry.sizes.train} to train on",
                where=str(location),
                hint="lower meta_support or meta_query",
            )


def _configured(method: Method, changes: Mapping[str, Any], track: Track, location: Location) -> Any:
    """A method's settings. Raises ``UserError`` for an unknown setting or a value it does not take."""
    try:
        return track.configure(method, changes)
    except UnknownName as error:
        kind = "preset" if error.where.startswith("presets") else "setting"
        raise unknown_name(f"{kind} of {method.name}", error.name, error.known, where=str(location)) from None
    except (ValueError, TypeError) as error:
        raise UserError(str(error), where=str(location)) from None


def _label(choice: MethodChoice) -> str | None:
    """The label a grid gives a method: its ``as``, or the preset it takes."""
    preset = choice.settings.get("preset")
    return choice.label or (f"{choice.name}[{preset}]" if preset else None)


def _words(entry: DatasetEntry) -> tuple[str, ...]:
    """The class words a catalog entry states itself."""
    names = entry.class_names
    return tuple(names.values()) if isinstance(names, dict) else names if isinstance(names, tuple) else ()


def default_labels(planned: Mapping[Cell, Planned]) -> dict[tuple[str, MethodRef], str]:
    """Labels of the cells without one, by track: the method's name, and the settings that vary there if any do."""
    variants: dict[tuple[str, str], dict[MethodRef, dict[str, Any]]] = {}
    for one in planned.values():
        if one.label is None:
            method = one.cell.method
            variants.setdefault((one.cell.track, method.name), {})[method] = method.settings_dict()
    labels = {}
    for (track, name), refs in variants.items():
        names = [key for key in next(iter(refs.values())) if len({repr(s.get(key)) for s in refs.values()}) > 1]
        for ref, settings in refs.items():
            varying = ",".join(f"{key}={_spelled(settings[key])}" for key in names)
            labels[track, ref] = f"{name}[{varying}]" if varying else name
    return labels


def _spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(_spelled(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
