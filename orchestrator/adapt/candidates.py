"""Parses the candidates of ``adapt``, and plans their trials: a small grid with one cell for each candidate."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from bolt.methods.auto import FROZEN_CANDIDATES
from bolt.methods.common.candidates import Candidate, parse_candidate
from bolt.methods.common.prompts import DeepPromptSettings
from bolt.model.checkpoint_sources import checkpoint_paths
from bolt.model.saving import Form
from orchestrator.adapt.own_images import OwnImages
from orchestrator.adapt.request import Request
from orchestrator.adapt.trials import Trial
from orchestrator.artifacts.features import TestFeatures
from orchestrator.catalog import BackboneEntry, load_catalog
from orchestrator.catalog.yaml_files import dump_yaml, write_entries
from orchestrator.grid import load_grid
from orchestrator.grid.resolve import missing_part
from orchestrator.models.adoption import adopt_checkpoints
from orchestrator.models.export import check_form
from orchestrator.planning.plan import Plan, source_models
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError, explained

WITHOUT_SOURCES = (*FROZEN_CANDIDATES, "logistic_probe", "lora")
WITH_SOURCES = ("bolt", "bolt_pooled", *WITHOUT_SOURCES)
"""The default candidates, the most trusted first. If no image can be held out, the first one is taken. If several are
equally accurate, the first of these is taken."""

TINY = "tiny-clip"
TINY_RATES = {"lora": "lora(learning_rate=0.001)", "bolt": "bolt(learning_rate=0.01)"}
TINY_FINE_TUNING = {"epochs": 8, "batch_size": 32, "learning_rate": 5e-4, "warmup_steps": 50}
"""Settings for the backbone ``TINY``: the learning rates of candidates (``TINY_RATES``), and the recipe that fine-tunes
source models. ``grids/demo-fewshot.yaml`` has the same values. The papers' learning rates are for larger towers."""


def read_candidates(request: Request, backbone: BackboneEntry, form: Form) -> list[Candidate]:
    """Return the candidates that the user named; by default, the default candidates that run on the backbone.

    ``form``: the form of the model's file.

    Raises ``UserError`` for a candidate that cannot be parsed, is given twice, changes a setting that has no effect,
    needs sources that the user does not give, needs a part that the backbone lacks, such as weight matrices, or cannot
    be saved in the form. Also raises ``UserError`` if the user gives sources and no candidate reads them.
    """
    texts = request.methods or (WITH_SOURCES if request.sources is not None else WITHOUT_SOURCES)
    if request.backbone == TINY and not request.methods:
        texts = tuple(TINY_RATES.get(text, text) for text in texts)
    with explained(ValueError, where="--methods"):
        candidates = [parse_candidate(text) for text in texts]
        for candidate in candidates:
            candidate.method.check_effects(candidate.settings, "fewshot")
    if not request.methods:
        candidates = [each for each in candidates if not missing_part(each.method, each.settings, backbone)]
    for candidate in candidates:
        if lacks := missing_part(candidate.method, candidate.settings, backbone):
            what = f"{candidate.method.name} needs {lacks}"
            raise UserError(what, where="--methods", hint="leave the method out, or take another --backbone")
        if candidate.uses_sources and request.sources is None:
            what = f"{candidate.method.name} needs source models"
            raise UserError(what, where="--methods", hint="give --sources DOMAIN")
    if request.sources is not None and not any(candidate.uses_sources for candidate in candidates):
        what = "none of the methods reads source models"
        raise UserError(what, where="--sources", hint="leave --sources out, or add bolt to --methods")
    if len(set(texts)) < len(texts):
        raise UserError("a candidate is given twice", where="--methods")
    for candidate in candidates:
        learns_tokens = isinstance(candidate.settings, DeepPromptSettings)
        check_form(form, backbone, candidate.method.name if learns_tokens else None)
    return candidates


def plan_trials(request: Request, images: OwnImages, candidates: Sequence[Candidate], console: Console) -> list[Trial]:
    """Write the grid of the candidates into the working folder, and return the trial of each candidate, in their order.

    The method of a trial's cell is ``auto``, which here has only this candidate to choose from. If the sources are a
    folder, its checkpoints are adopted first. A trial's inputs include the features of the sources' test images,
    because building a source measures its accuracy. The features of the user's test images are not among the inputs.

    Raises ``UserError`` for a folder without usable checkpoints, and what :func:`orchestrator.grid.load_grid` raises.
    """
    sources = _source_pool(request, images, console)
    labels = [f"{number}: {candidate.text}" for number, candidate in enumerate(candidates)]
    block = {
        "track": "fewshot",
        "backbones": [request.backbone],
        "datasets": [images.entry.name],
        "shots": [max(images.per_class)],
        "seeds": [1],
        "methods": [
            {"auto": {"candidates": [candidate.text], "as": label}}
            for candidate, label in zip(candidates, labels, strict=True)
        ],
        **({"sources": dict(sources)} if sources else {}),
    }
    content: dict[str, object] = {
        "title": f"adapt {images.entry.name}",
        "protocol": {"name": "strict", "short_classes": "take_all"},
        "blocks": [block],
    }
    if request.backbone == TINY:
        content["fine_tuning"] = TINY_FINE_TUNING
    path = request.work / "grid.yaml"
    path.write_text(dump_yaml(content), encoding="utf-8")
    catalog, root = load_catalog(images.settings.catalog_files), images.settings.data_folder
    grid = load_grid(path, catalog, data_root=root)
    cells = {grid.label(cell): cell for cell in grid.cells}
    plan = Plan(grid, catalog, root, tuple(cells[label] for label in labels), source_models(grid, catalog, root))
    trials = []
    for candidate, cell in zip(candidates, plan.cells, strict=True):
        needed = plan.artifacts_of([cell])
        inputs = [spec for spec in needed if not (isinstance(spec, TestFeatures) and spec.dataset == cell.dataset)]
        trials.append(Trial(candidate, cell, inputs))
    return trials


def _source_pool(request: Request, images: OwnImages, console: Console) -> Mapping[str, object] | None:
    """Return the block ``sources`` of the grid; ``None`` if the user gives no sources.

    If the sources are a folder, its checkpoints are first adopted into the working folder's catalog.
    """
    if request.sources is None:
        return None
    folder, files = Path(request.sources), [Path(file) for file in images.settings.catalog_files]
    if not folder.is_dir():
        return {"rule": "leave_one_out", "domain": request.sources}
    write_entries(files[-1], {"checkpoints": {}}, replace=True)  # removes the checkpoints that an earlier run adopted
    with explained(FileNotFoundError, where="--sources"):
        checkpoints = [str(path) for path in checkpoint_paths(folder).values()]
        try:
            say = partial(print_line, console=console)
            datasets = adopt_checkpoints(checkpoints, request.backbone, None, files, say=say)
        except UserError as error:
            unnamed = "--dataset" in error.hint
            hint = "name each file after one of the datasets that `data list` shows" if unnamed else error.hint
            raise UserError(error.what, where=f"--sources {error.where}".rstrip(), hint=hint) from None
    return {"rule": "leave_one_out", "datasets": datasets}
