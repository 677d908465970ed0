"""Make the cells of a block: the product of its backbones, targets, methods, k and seeds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from bolt.methods import METHODS, Method
from bolt.protocol import Protocol
from orchestrator.catalog import Catalog, DatasetEntry
from orchestrator.catalog.location import Location
from orchestrator.core.cell import Cell, SourceRef
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid.options import OPTION, FieldLocations, Overrides
from orchestrator.grid.resolve import ResolvedMethod, resolve_method, resolve_protocol
from orchestrator.grid.schema import Block
from orchestrator.grid.sources import SourceResolver, draw_sources
from orchestrator.tracks import TRACKS, Track

MOST_CELLS = 100_000
"""Largest number of cells of a grid. A grid of this size is planned in 25 s. The project's largest grid, ``full``, has
about 45,000 cells. Without a limit, a mistyped range of seeds would be noticed only after minutes."""


def expand_block(
    block: Block, location: Location, recipe: SourceRecipe, overrides: Overrides, resolver: SourceResolver
) -> Iterator[tuple[Cell, ResolvedMethod]]:
    """Yield the cells of a block, each with the entry of ``methods`` that it belongs to. A cell may come twice.

    Args:
        location: the location of the block, for messages.
        recipe: how source models are fine-tuned.
        resolver: finds datasets, backbones and source models.

    Raises ``UserError`` for a name that does not exist and for a combination that cannot be measured.
    """
    at, stated, catalog = FieldLocations(location, overrides), block.protocol, resolver.catalog
    # The block's own protocol is checked first, so that an error in it is not reported as an error of ``--set``.
    switches = resolve_protocol(stated, at("protocol"))
    if changed := overrides.protocol:
        fields = stated if isinstance(stated, Mapping) else {"name": stated}
        switches = resolve_protocol({**fields, **changed}, OPTION / "protocol")
    if block.track not in TRACKS:
        raise at("track").unknown_name("track", block.track, TRACKS)
    track = TRACKS[block.track]
    for index, name in enumerate(block.backbones):
        catalog.backbone(name, at("backbones") / index)
    targets = _find_targets(block, catalog, at)
    if track.scores_variants and not any(set(block.evaluate_on or ()) - {entry.name} for entry in targets):
        what = f"the {track.name} track is scored on other datasets than the target, and the block names none"
        raise at("evaluate_on").error(what, "name them: evaluate_on: [NAME, ...]")
    methods = [
        resolve_method(choice, track, switches, overrides, at("methods") / index)
        for index, choice in enumerate(block.methods)
    ]
    if track.base_classes is not None:
        for entry in targets:
            if entry.classes - track.base_classes(entry.classes) < 2:
                what = f"{entry.name} has {entry.classes} classes: with one new class, every prediction is right"
                raise at.block.error(what, f"the track {track.name} takes datasets of four classes or more")
    overrides.notes += _unread_switches(switches, methods, track)
    _check_supports(block, track, switches, targets, methods, at)
    count = len(block.backbones) * len(targets) * len(methods) * len(block.shots or (0,)) * len(block.seeds or (0,))
    if count > MOST_CELLS:
        what = f"the block has up to {count:,} cells, and a grid may have {MOST_CELLS:,}"
        raise at.block.error(what, "give fewer seeds")
    choice, sources_at = block.sources, at("sources")
    listed = track.gives_support and track.support_draw(switches) == "listed"
    for backbone, target in product(block.backbones, targets):
        scored = _find_scored(block, track, target, catalog, at)
        for entry in scored:
            if entry is not target and entry.shares_images(target):
                what = f"note: {entry.name} has images of {target.name}"
                overrides.notes.append(f"{what}: a method may be scored on images that it has learned from")
        dataset, evaluate_on = resolver.dataset(target.name), tuple(resolver.dataset(entry.name) for entry in scored)
        whole = resolver.pool(choice, target, scored, sources_at) if any(m.uses_sources for m in methods) else ()
        for resolved in methods:
            if resolved.uses_sources and not whole:  # under ``required: false``, a target may be left without sources
                continue
            method, pool = resolved.method, whole if resolved.uses_sources else ()
            computing = resolved.precision or block.precision
            # A source model keeps the activation of its backbone under every protocol.
            made_by = resolver.backbone(backbone, "as_trained", computing), recipe, choice.adopted
            ref = resolver.backbone(backbone, switches.activation, computing)
            if pool and method.uses_source_models and choice.min_gain is not None:
                models = resolver.models(pool, *made_by)
                pool = resolver.with_gain(pool, models, choice.min_gain, backbone, sources_at)
            resolved.check_episodes(catalog.datasets[name] for name in pool)
            draws = product(block.shots or (0,), block.seeds or (0,)) if method.uses_support else ((0, 0),)
            sources: dict[int, tuple[SourceRef, ...]] = {}  # by seed
            for k, seed in draws:
                if seed not in sources:
                    drawn = draw_sources(pool, choice.count, target.name, seed, sources_at)
                    learns = method.meta_recipe is not None
                    sources[seed] = resolver.images(drawn) if learns else resolver.models(drawn, *made_by)
                cell = Cell(
                    track=track.name,
                    protocol=switches,
                    backbone=ref,
                    domain=target.domain,
                    dataset=dataset,
                    evaluate_on=evaluate_on,
                    sources_rule=choice.rule if resolved.uses_sources else "none",
                    sources=sources[seed],
                    shots=k,
                    method=resolved.ref,
                    seed=seed,
                    listed=resolver.listed(target.name, k, seed) if listed and method.uses_support else None,
                )
                yield cell, resolved


def _unread_switches(protocol: Protocol, methods: Iterable[ResolvedMethod], track: Track) -> Iterator[str]:
    """Yield a note for each changed switch that no method of the block reads."""
    every = [(each.method, each.settings) for one in methods for each in (one, *getattr(one.settings, "parsed", ()))]
    for switch in filter(None, (text.partition("=")[0] for text in protocol.name.partition("+")[2].split(","))):
        if not any(_reads(switch, method, settings, track) for method, settings in every):
            what = f"without the method {switch}" if switch in METHODS else "whose methods do not read it"
            yield f"note: the switch {switch} makes new cells with the same numbers in a block {what}"


def _reads(switch: str, method: Method, settings: Any, track: Track) -> bool:
    """Return whether a method reads a switch; true for a switch about which methods declare nothing."""
    match switch:
        case "baseline_crop":
            return method.baseline_crop
        case "validation":
            return method.uses_validation
        case "meta_scoring":
            return method.meta_recipe is not None
        case "config_selection":
            return len(method.candidates(settings)) > 1
        case "sigma_sign":
            return hasattr(settings, "sign")
        case "task_count_basis":
            return hasattr(settings, "padded_sources")
        case "alpha_views" | "tta_alpha":
            return len(getattr(settings, "alphas", ())) > 1 and track.gives_support == (switch == "alpha_views")
        case "schedule_offset":
            return method.name == "bolt"
        case "atlas_tta":
            return method.name == "atlas" and not track.gives_support
    return switch not in METHODS or method.name == switch


def _find_targets(block: Block, catalog: Catalog, at: FieldLocations) -> list[DatasetEntry]:
    """Return the datasets that a block names; or, if it names domains, their datasets that have training images.

    Raises ``UserError`` for an unknown name, and if the block names both datasets and domains, or neither.
    """
    if (block.domains is None) == (block.datasets is None):
        raise at.block.error("a block names its targets by either domains or datasets")
    if block.datasets is not None:
        return [catalog.dataset(name, at("datasets") / i) for i, name in enumerate(block.datasets)]
    targets = []
    for index, domain in enumerate(block.domains or ()):
        location = at("domains") / index
        members = [entry for entry in catalog.datasets_of(domain, location) if entry.has_training_images]
        if not members:
            raise location.error(f"domain {domain} has no dataset to adapt to")
        targets += members
    return targets


def _find_scored(
    block: Block, track: Track, target: DatasetEntry, catalog: Catalog, at: FieldLocations
) -> list[DatasetEntry]:
    """Return the datasets that the cells of a target are scored on: the datasets in ``evaluate_on``, or the target.

    Raises ``UserError`` if the track scores only the target, or if a dataset has classes that the target lacks.
    """
    if block.evaluate_on is None:
        return [target]
    location = at("evaluate_on")
    if not track.scores_variants:
        able = " and ".join(name for name, other in TRACKS.items() if other.scores_variants)
        raise location.error(f"only the {able} track is scored on other datasets than its target")
    if twice := next((name for name in block.evaluate_on if block.evaluate_on.count(name) > 1), None):
        raise location.error(f"{twice} is named twice")
    entries = [catalog.dataset(name, location / i) for i, name in enumerate(block.evaluate_on)]
    for index, entry in enumerate(entries):
        if track.own_words:
            continue
        unknown = sorted(set(_class_names(entry)) - set(_class_names(target)) if _class_names(target) else ())
        if unknown or entry.classes > target.classes:
            which = f"the class {unknown[0]!r}" if unknown else f"{entry.classes} classes"
            has = f"{entry.name} has {which}, but {target.name} has {'no such class' if unknown else target.classes}"
            cannot = f"a method that adapts to {target.name} cannot be scored on {entry.name}"
            raise (location / index).error(f"{has}; {cannot}")
    return entries


def _class_names(entry: DatasetEntry) -> tuple[str, ...]:
    """Return the class names that a catalog entry lists; none if the entry takes them from the data or open_clip."""
    names = entry.class_names
    return tuple(names.values()) if isinstance(names, dict) else names if isinstance(names, tuple) else ()


def _check_supports(
    block: Block,
    track: Track,
    protocol: Protocol,
    targets: Sequence[DatasetEntry],
    methods: Iterable[ResolvedMethod],
    at: FieldLocations,
) -> None:
    """Raise ``UserError`` if a support that the block asks for cannot be drawn."""
    if block.shots is not None and not track.gives_support:
        raise at("shots").error(f"the {track.name} track reads no labels, so it takes no shots")
    if (name := next((one.method.name for one in methods if one.method.uses_support), None)) is None:
        return
    if block.seeds is None:
        raise at("seeds").error(f"this field is needed: {name} draws a support with each seed")
    if not track.gives_support:
        return
    if block.shots is None:
        raise at("shots").error(f"this field is needed: {name} learns from a support")
    if track.support_split(protocol) == "test":
        return  # the catalog has class sizes of training splits only, so k is not checked here
    largest = max(block.shots)
    for entry in targets:
        if not entry.has_training_images:
            raise at.block.error(f"{entry.name} has no training images to adapt to", "name it in evaluate_on")
        if protocol.short_classes == "refuse" and track.support_draw(protocol) == "imbalanced":
            if largest * entry.classes > entry.sizes.train:
                had = f"{entry.name} has {entry.sizes.train} training images in all"
                raise at("shots").error(f"k is {largest} for {entry.classes} classes, but {had}")
        elif protocol.short_classes == "refuse" and largest > entry.max_shots:
            had = f"the smallest class of {entry.name} has at most {entry.max_shots} training images"
            block_with = f"protocol: {{name: {protocol.name.partition('+')[0]}, short_classes: take_all}}"
            hint = f"use shots up to {entry.max_shots}, or write a separate block for the dataset with {block_with}"
            raise at("shots").error(f"k is {largest}, but {had}", hint)
