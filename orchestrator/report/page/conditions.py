"""How the results of a report were measured: protocols, seeds, devices, code and packages, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bolt.protocol import Protocol
from orchestrator.analysis.comparable import base_protocol
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.switch_effects import switches_text
from orchestrator.report.notation import SELECTED
from orchestrator.store.results import Manifest
from orchestrator.util.units import pluralize


def conditions(study: Study) -> list[tuple[str, list[str]]]:
    """Name and values of each condition. If there are several values, each has the number of its cells."""
    results = study.results
    if not results:
        return []
    cells, manifests = [result.cell for result in results], [result.manifest for result in results]
    protocols = {cell.protocol.name: cell.protocol for cell in cells}
    seeds = {cell.seed for cell in cells if cell.shots or cell.seed} or {cell.seed for cell in cells}
    return [
        ("protocol", [_protocol_text(protocol, protocols) for protocol in protocols.values()]),
        ("seeds of the support", [", ".join(map(str, sorted(seeds)))]),
        ("sources", _counted(Counter(cell.sources_rule.replace("_", " ") for cell in cells))),
        ("backbones", sorted({f"{c.backbone.name} (weights {c.backbone.digest[:12]})" for c in cells})),
        ("datasets", [f"{len({row.test for row in study.rows})} test splits"]),
        ("devices", _counted(Counter(map(_device, manifests)))),
        ("code", _counted(Counter(map(_commit, manifests)))),
        ("packages", [", ".join(sorted(_packages(manifests), key=str.casefold))]),
    ]


def _counted(values: Counter[str]) -> list[str]:
    if len(values) == 1:
        return list(values)
    return [
        f"{value} ({pluralize(f'{count:,}', 'cell')})"
        for value, count in sorted(values.items(), key=lambda v: (-v[1], v[0]))
    ]


def _device(manifest: Manifest) -> str:
    precision = "" if manifest.precision in ("", "float32") else f"{manifest.precision}, "
    return f"{manifest.device} ({precision}threads: {manifest.threads})"


def _commit(manifest: Manifest) -> str:
    changes = ", with uncommitted changes" if manifest.dirty else ""
    return (manifest.commit[:12] or "not under version control") + changes


def _packages(manifests: list[Manifest]) -> list[str]:
    """Names and versions; with the number of cells if a package had several versions."""
    counts = Counter(pair for manifest in manifests for pair in manifest.versions.items())
    versions = Counter(name for name, _ in counts)
    return [
        f"{name} {version}" + (f" ({pluralize(f'{count:,}', 'cell')})" if versions[name] > 1 else "")
        for (name, version), count in counts.items()
    ]


def _protocol_text(protocol: Protocol, present: Mapping[str, Protocol]) -> str:
    """A protocol with all its switches; with those that differ if the protocol that it changes is in the report too."""
    base = base_protocol(protocol.name, present)
    switches = f"as {base}, but {switches_text(protocol, present[base])}" if base else switches_text(protocol)
    dagger = f" {SELECTED} selects on the test set" if protocol.selects_on_test else ""
    return f"{protocol.name}: {switches}{dagger}"
