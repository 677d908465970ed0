"""From a block to its cells: the product of its backbones, targets, methods, k and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from orchestrator.catalog.location import Location
from orchestrator.core.cell import Cell, SourceRef
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid.overrides import OPTION, FieldLocations, Overrides
from orchestrator.grid.resolve import ResolvedMethod, resolve_method, resolve_protocol
from orchestrator.grid.schema import Block
from orchestrator.grid.sources import SourceResolver, draw_sources
from orchestrator.grid.targets import check_supports, find_scored, find_targets
from orchestrator.tracks import TRACKS


def expand_block(
    block: Block, place: Location, recipe: SourceRecipe, overrides: Overrides, resolver: SourceResolver
) -> Iterator[tuple[Cell, ResolvedMethod]]:
    """The cells of a block, each with the entry of ``methods`` that asks for it; twice if the block asks twice.

    The block stands at ``place``, and ``recipe`` says how its source models are fine-tuned.

    Raises ``UserError`` for a name that does not exist and for a combination that cannot be measured.
    """
    at, stated, catalog = FieldLocations(place, overrides), block.protocol, resolver.catalog
    switches = resolve_protocol(stated, at("protocol"))  # before overrides, so that the file is checked too
    if changed := overrides.protocol:
        fields = stated if isinstance(stated, Mapping) else {"name": stated}
        switches = resolve_protocol({**fields, **changed}, OPTION / "protocol")
    if block.track not in TRACKS:
        raise at("track").unknown_name("track", block.track, TRACKS)
    track = TRACKS[block.track]
    for index, name in enumerate(block.backbones):
        catalog.backbone(name, at("backbones") / index)
    targets = find_targets(block, catalog, at)
    methods = [
        resolve_method(choice, track, overrides, at("methods") / index) for index, choice in enumerate(block.methods)
    ]
    check_supports(block, track, switches, targets, methods, at)
    choice, sources_at = block.sources, at("sources")
    for backbone, target in product(block.backbones, targets):
        scored = find_scored(block, track, target, catalog, at)
        evaluate_on = tuple(resolver.dataset(entry.name) for entry in scored)
        whole = resolver.pool(choice, target, scored, sources_at) if any(m.uses_sources for m in methods) else ()
        for resolved in methods:
            if resolved.uses_sources and not whole:  # only where sources are not required
                continue
            method, pool = resolved.method, whole if resolved.uses_sources else ()
            computing = resolved.precision or block.precision
            # A source model keeps the activation of its backbone under every protocol.
            made_by = resolver.backbone(backbone, "as_trained", computing), recipe, choice.adopted
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
                    backbone=resolver.backbone(backbone, switches.activation, computing),
                    domain=target.domain,
                    dataset=resolver.dataset(target.name),
                    evaluate_on=evaluate_on,
                    sources_rule=choice.rule if resolved.uses_sources else "none",
                    sources=sources[seed],
                    shots=k,
                    method=resolved.ref,
                    seed=seed,
                )
                yield cell, resolved
