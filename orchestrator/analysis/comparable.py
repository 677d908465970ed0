"""Which rows a comparison of methods is made of: ablations, changed protocols, and methods without a seed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from orchestrator.analysis.rows import Row
from orchestrator.core.cell import Cell

Place = tuple[str, str, str, str]
"""Track, protocol, backbone and domain."""
Ablation = tuple[str, str, str, str, str]
"""Track, protocol, backbone, domain and label of a method that is planned on some of the domain's datasets only."""


def ablations_of(cells: Iterable[Cell], labels: Mapping[str, str]) -> frozenset[Ablation]:
    """Return the labels that are planned on fewer datasets of a domain than another label of their method.

    ``labels``: the label of every cell, by its id.
    """
    datasets: dict[tuple[str, str, str, str, str], dict[str, set[str]]] = {}
    for cell in cells:
        place = (cell.track, cell.protocol.name, cell.backbone.name, cell.domain, cell.method.name)
        datasets.setdefault(place, {}).setdefault(labels[cell.id], set()).add(cell.dataset.name)
    return frozenset(
        (*place[:4], label)
        for place, by_label in datasets.items()
        for label, own in by_label.items()
        if any(own < other for other in by_label.values())
    )


def is_ablation(row: Row, ablations: Collection[Ablation]) -> bool:
    """Whether the row belongs to one of the ablations."""
    return (row.track, row.protocol, row.backbone, row.domain, row.method) in ablations


def base_protocol(name: str, present: Iterable[str]) -> str | None:
    """Return the protocol in ``present`` that ``name`` changes: ``strict`` for ``strict+sigma_sign=relu``.

    If ``name`` changes several of them, the one with the fewest differences. ``None`` if it changes none.
    """
    known = set(present)
    while "+" in name:
        name = name.rpartition("+")[0]
        if name in known:
            return name
    return None


def changed_places(places: Iterable[Place]) -> frozenset[Place]:
    """Return the places whose protocol changes the protocol of another place with the same track, backbone and domain.

    If the base of a changed protocol was measured on other tracks or domains only, the protocol counts as unchanged.
    """
    protocols: dict[tuple[str, str, str], set[str]] = {}
    every = set(places)
    for track, protocol, backbone, domain in every:
        protocols.setdefault((track, backbone, domain), set()).add(protocol)
    return frozenset(
        (track, protocol, backbone, domain)
        for track, protocol, backbone, domain in every
        if base_protocol(protocol, protocols[track, backbone, domain]) is not None
    )


def comparable_rows(rows: Sequence[Row], ablations: Collection[Ablation]) -> list[Row]:
    """Return the rows that verdicts are about.

    Ablations and protocols that change another one of the same track, backbone and domain are left out.

    More methods in a comparison make every test in it stricter, so variants on a few datasets take no part.
    """
    changed = changed_places(map(place_of, rows))
    return [row for row in rows if place_of(row) not in changed and not is_ablation(row, ablations)]


def place_of(row: Row) -> Place:
    """Return the row's place."""
    return row.track, row.protocol, row.backbone, row.domain


def seedless_methods(rows: Sequence[Row]) -> frozenset[str]:
    """Return the labels that have one row for each test split.

    That row counts at every k, while other labels have rows by k or seed.

    Without any k or seed in the rows there are none.
    """
    drawn = {row.method for row in rows if row.k > 0 or row.seed > 0}
    return frozenset({row.method for row in rows} - drawn) if drawn else frozenset()


def methods_without_seeds(rows: Sequence[Row]) -> frozenset[str]:
    """Return the labels whose accuracy does not depend on a seed.

    If no row has a seed, only the methods' own declarations say which of them depend on one.
    """
    from bolt.methods import METHODS  # imports torch

    declared = {name for name, method in METHODS.items() if not method.uses_support}
    return seedless_methods(rows) | {row.method for row in rows if row.method_name in declared}
