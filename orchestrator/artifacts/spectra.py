"""Stage ``spectra``: each task vector decomposed once, and each domain's task vectors summed once."""

from __future__ import annotations

import torch
from safetensors import safe_open

from bolt.clip.tensor_files import save_tensors
from bolt.clip.tensor_names import matrix_names
from bolt.spectral.directions import top_directions
from bolt.spectral.task_vector_sum import add_task_vector
from orchestrator.artifacts.kinds import DomainTotal, Source, SourceDirections
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.store import Builder


def build_directions(spec: SourceDirections, loaded: LoadedArtifacts, builder: Builder) -> None:
    """One source's leading directions of every weight matrix: ``<matrix>.u`` (m, k), ``.s`` (k,), ``.v`` (n, k)."""
    pretrained = loaded.backbone(spec.source.backbone).tower.state_dict_open_clip()
    tensors = {}
    with safe_open(_weights(spec.source, loaded), "pt") as file:
        for name in matrix_names(pretrained):
            delta = file.get_tensor(name) - pretrained[name].cpu()
            found = top_directions(delta.to(loaded.device), spec.top_k)
            for part in ("u", "s", "v"):
                tensors[f"{name}.{part}"] = getattr(found, part).float().cpu().contiguous()
    save_tensors(tensors, builder.folder / "directions.safetensors")
    builder.meta.update(source=spec.source.ref.dataset, top_k=spec.top_k)


def build_total(spec: DomainTotal, loaded: LoadedArtifacts, builder: Builder) -> None:
    """The float64 sum of the domain's task vectors, tensor by tensor."""
    backbone = spec.sources[0].backbone
    pretrained = loaded.backbone(backbone).tower.state_dict_open_clip()
    totals = {name: torch.zeros_like(tensor, dtype=torch.float64, device="cpu") for name, tensor in pretrained.items()}
    for source in spec.sources:
        with safe_open(_weights(source, loaded), "pt") as file:
            for name, total in totals.items():
                add_task_vector(total, file.get_tensor(name) - pretrained[name].cpu())
    save_tensors(totals, builder.folder / "total.safetensors")
    builder.meta.update(
        backbone=backbone.digest, sources=[[source.ref.dataset, source.ref.digest] for source in spec.sources]
    )


def _weights(source: Source, loaded: LoadedArtifacts) -> str:
    return str(loaded.open(source.address).path("tower.safetensors"))
