"""Stage ``spectra``: each task vector decomposed once, and each domain's task vectors summed once."""

from __future__ import annotations

import torch
from safetensors import safe_open

from bolt.clip.backbone import matrix_names
from bolt.clip.tensor_files import save_tensors
from bolt.spectral.bases import add_task_vector, top_directions
from orchestrator.artifacts.kinds import DomainTotal, Source, SourceDirections
from orchestrator.artifacts.workbench import Workbench
from orchestrator.store import Builder


def build_directions(need: SourceDirections, bench: Workbench, builder: Builder) -> None:
    """One source's leading directions of every weight matrix: ``<matrix>.u`` (m, k), ``.s`` (k,), ``.v`` (n, k)."""
    pretrained = bench.backbone(need.source.backbone).tower.state_dict_open_clip()
    tensors = {}
    with safe_open(_weights(need.source, bench), "pt") as file:
        for name in matrix_names(pretrained):
            delta = file.get_tensor(name) - pretrained[name].cpu()
            found = top_directions(delta.to(bench.device), need.top_k)
            for part in ("u", "s", "v"):
                tensors[f"{name}.{part}"] = getattr(found, part).float().cpu().contiguous()
    save_tensors(tensors, builder.folder / "directions.safetensors")
    builder.meta.update(source=need.source.ref.dataset, top_k=need.top_k)


def build_total(need: DomainTotal, bench: Workbench, builder: Builder) -> None:
    """The float64 sum of the domain's task vectors, tensor by tensor."""
    backbone = need.sources[0].backbone
    pretrained = bench.backbone(backbone).tower.state_dict_open_clip()
    totals = {name: torch.zeros_like(tensor, dtype=torch.float64, device="cpu") for name, tensor in pretrained.items()}
    for source in need.sources:
        with safe_open(_weights(source, bench), "pt") as file:
            for name, total in totals.items():
                add_task_vector(total, file.get_tensor(name) - pretrained[name].cpu())
    save_tensors(totals, builder.folder / "total.safetensors")
    builder.meta.update(
        backbone=backbone.digest, sources=[[source.ref.dataset, source.ref.digest] for source in need.sources]
    )


def _weights(source: Source, bench: Workbench) -> str:
    return str(bench.open(source.address).path("tower.safetensors"))
