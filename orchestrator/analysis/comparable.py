"""Selects the rows that verdicts compare.

Two kinds of rows are not compared: those of changed protocols and those of ablations. An ablation is a variant of a
method that is measured on only some of the method's datasets.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from orchestrator.analysis.rows import Row
from orchestrator.core.cell import Cell, Place
from orchestrator.util.grouping import grouped


def ablations_of(cells: Iterable[Cell], labels: Mapping[str, str]) -> frozenset[tuple[Place, str]]:
    """Return the place and the label of every ablation.

    A label is an ablation if another label of the same method covers, at this place, all of its datasets and more.

    ``labels``: the label of every cell, by its id.
    """
    datasets: dict[tuple[Place, str], dict[str, set[str]]] = {}
    for cell in cells:
        by_label = datasets.setdefault((cell.place, cell.method.name), {})
        by_label.setdefault(labels[cell.id], set()).add(cell.dataset.name)
    return frozenset(
        (place, label)
        for (place, _), by_label in datasets.items()
        for label, own in by_label.items()
        if any(own < other for other in by_label.values())
    )


def plain_labels(names: Mapping[str, str]) -> frozenset[str]:
    """Return the labels that stand for a method as it was published. Other labels name variants.

    Such a label is the method's name, or the method's only label. ``names``: label -> the method's name.
    """
    counts = Counter(names.values())
    return frozenset(label for label, name in names.items() if label == name or counts[name] == 1)


def base_protocol(name: str, present: Iterable[str]) -> str | None:
    """Return the base of a changed protocol: the protocol in ``present`` with fewer of the same changes, or with none.

    The base of ``strict+sigma_sign=relu``, for example, is ``strict``. If ``present`` has several bases, the one that
    differs least from ``name`` is returned; ``None`` if it has none.
    """
    known = set(present)
    while "+" in name:
        name = name.rpartition("+")[0]
        if name in known:
            return name
    return None


def changed_places(places: Iterable[Place]) -> frozenset[Place]:
    """Return the places whose protocol changes another measured protocol, its base.

    The base must have been measured on the same track, backbone and domain. If it was measured only elsewhere, the
    protocol counts as unchanged.
    """
    groups = grouped(set(places), lambda place: place._replace(protocol="")).values()
    return frozenset(
        place for own in groups for place in own if base_protocol(place.protocol, (other.protocol for other in own))
    )


def seedless_methods(drawn: Iterable[tuple[str, int, int]]) -> frozenset[str]:
    """Return the labels of the methods that have neither k nor seed. Verdicts compare their scores at every k.

    If nothing has a k or a seed, no label is returned. ``drawn``: label, k and seed of each row or cell.
    """
    every = set(drawn)
    with_draws = {label for label, k, seed in every if k > 0 or seed > 0}
    return frozenset({label for label, _, _ in every} - with_draws) if with_draws else frozenset()


def comparable_rows(rows: Sequence[Row], ablations: Collection[tuple[Place, str]]) -> list[Row]:
    """Return the rows that verdicts compare: all rows but those of ablations and changed protocols.

    Each method that takes part makes the tests of all methods stricter. An ablation would do so too, although it is
    measured on only some of the datasets.
    """
    changed = changed_places(row.place for row in rows)
    return [row for row in rows if row.place not in changed and (row.place, row.method) not in ablations]
