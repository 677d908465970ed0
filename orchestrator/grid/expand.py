"""From a block to its cells: the product of its backbones, targets, methods, k and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bolt.protocol import Protocol
from orchestrator.catalog import Catalog
from orchestrator.catalog.location import Location
from orchestrator.core.cell import Cell, SourceRef
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid.overrides import FieldLocations, Overrides
from orchestrator.grid.resolve import resolve_method, resolve_protocol
from orchestrator.grid.schema import Block, GridFile
from orchestrator.grid.sources import GainOf, References, SourceResolver, SourceTraining, draw_sources
from orchestrator.grid.targets import check_supports, find_scored, find_targets
from orchestrator.tracks import TRACKS


@dataclass(frozen=True)
class PlannedCell:
    """A cell, and what the grid says of it beyond its identity.

    Attributes:
        label: the label that the grid gives its method, if it gives one.
        location: the entry of ``methods`` that asks for it.
    """

    cell: Cell
    label: str | None
    location: Location


class Expander:
    """Expands the blocks of a grid against one catalog; ``sources`` knows how each source model is made."""

    def __init__(self, catalog: Catalog, data_root: Path | None, overrides: Overrides, gain_of: GainOf) -> None:
        self.overrides, self._catalog = overrides, catalog
        self._references = References(catalog, data_root)
        self.sources = SourceResolver(catalog, self._references, gain_of)

    def cells(
        self, block: Block, place: Location, file: GridFile, top: Location, recipe: SourceRecipe
    ) -> Iterator[PlannedCell]:
        """The cells of a block; a cell comes twice if the block asks for it twice.

        Args:
            place: where the block stands.
            file, top: its grid file. The block's own protocol and precision replace the file's, and a method's own
                precision both.
            recipe: how source models are fine-tuned.

        Raises ``UserError`` for a name that does not exist and for a combination that cannot be measured.
        """
        at = FieldLocations(place, self.overrides)
        if block.protocol is None:
            switches = self._protocol(file.protocol, FieldLocations(top, self.overrides))
        else:
            switches = self._protocol(block.protocol, at)
        if block.track not in TRACKS:
            raise at("track").unknown_name("track", block.track, TRACKS)
        track = TRACKS[block.track]
        for index, name in enumerate(block.backbones):
            self._catalog.backbone(name, at("backbones") / index)
        targets = find_targets(block, self._catalog, at)
        methods = [
            resolve_method(choice, track, self.overrides, at("methods") / index)
            for index, choice in enumerate(block.methods)
        ]
        check_supports(block, track, switches, targets, methods, at)
        choice, sources_at = block.sources, at("sources")
        for backbone, target in product(block.backbones, targets):
            scored = find_scored(block, track, target, self._catalog, at)
            evaluate_on = tuple(self._references.dataset(entry) for entry in scored)
            for resolved in methods:
                method = resolved.method
                computing = resolved.precision or block.precision or file.precision
                training = SourceTraining(backbone, recipe, choice.adopted, computing)
                pool = self.sources.pool(choice, target, scored, sources_at) if resolved.uses_sources else ()
                if resolved.uses_sources and not pool:  # only where sources are not required
                    continue
                if resolved.uses_sources and method.uses_source_models:
                    pool = self.sources.with_gain(pool, choice.min_gain, training, sources_at)
                resolved.check_episodes(pool)
                draws = product(block.shots or (0,), block.seeds or (0,)) if method.uses_support else ((0, 0),)
                sources: dict[int, tuple[SourceRef, ...]] = {}  # by seed
                for k, seed in draws:
                    if seed not in sources:
                        drawn = draw_sources(pool, choice.count, target, seed, sources_at)
                        sources[seed] = self.sources.references(method, drawn, training)
                    cell = Cell(
                        track=track.name,
                        protocol=switches,
                        backbone=self._references.backbone(backbone, switches.activation, computing),
                        domain=target.domain,
                        dataset=self._references.dataset(target),
                        evaluate_on=evaluate_on,
                        sources_rule=choice.rule if resolved.uses_sources else "none",
                        sources=sources[seed],
                        shots=k,
                        method=resolved.ref,
                        seed=seed,
                    )
                    yield PlannedCell(cell, resolved.label, resolved.location)

    def _protocol(self, value: Any, at: FieldLocations) -> Protocol:
        resolved = resolve_protocol(value, at("protocol"))  # before overrides, so that the file is checked too
        if not self.overrides.protocol:
            return resolved
        switches = value if isinstance(value, Mapping) else {"name": value}
        return resolve_protocol({**switches, **self.overrides.protocol}, self.overrides.location("protocol"))
