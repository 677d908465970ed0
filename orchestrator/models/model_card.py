"""The model card of a saved model: a README.md with the front matter that Hugging Face's hub reads."""

import json
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from bolt.methods import METHODS
from bolt.model.saving import INDEX, Form
from orchestrator.catalog import Catalog, DatasetEntry
from orchestrator.catalog.routes import HuggingFaceRoute
from orchestrator.core.cell import Cell
from orchestrator.store.results import Evaluation, Manifest

CARD = "README.md"
_LIBRARY: dict[Form, str] = {"adapter": "bolt", "state_dict": "open_clip", "huggingface": "transformers"}
_BASE_MODELS = {
    ("ViT-B-32", "openai"): "openai/clip-vit-base-patch32",
    ("ViT-B-16", "openai"): "openai/clip-vit-base-patch16",
    ("ViT-L-14", "openai"): "openai/clip-vit-large-patch14",
}
"""open_clip's architecture and tag -> the same weights in the hub."""


@dataclass(frozen=True)
class ModelCard:
    """The content of a model card.

    Attributes:
        name: name of the model.
        cell: the method with its settings, the backbone, the data and the sources.
        evaluations: scores on test splits; may be empty.
        notes: sentences about the accuracy.
        support_size: number of labelled images that the model was adapted to.
        manifest: the code, packages and device that made the model.
    """

    name: str
    cell: Cell
    evaluations: tuple[Evaluation, ...]
    notes: tuple[str, ...]
    support_size: int
    trainable_parameters: int
    manifest: Manifest


def write_card(card: ModelCard, catalog: Catalog, folder: Path, form: Form, learned_tokens: bool) -> None:
    """Write the card into ``folder``, in which a model was saved in the form ``form``.

    ``learned_tokens``: whether the image tower of the model has learned tokens.
    """
    basis = json.loads((folder / INDEX).read_text(encoding="utf-8")).get("basis") if form == "adapter" else None
    library = "bolt" if learned_tokens else _LIBRARY[form]  # open_clip cannot hold learned tokens
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("orchestrator.models"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=_without_markup,
    )
    text = environment.get_template("model_card.md.j2").render(
        front_matter=Markup(_front_matter(card, catalog, library)),
        card=card,
        cell=card.cell,
        method=METHODS[card.cell.method.name],
        settings=[(name, json.dumps(value, ensure_ascii=False)) for name, value in card.cell.method.settings],
        backbone=catalog.backbone(card.cell.backbone.name),
        dataset=catalog.dataset(card.cell.dataset.name),
        datasets=catalog.datasets,
        form=form,
        needs_sources=basis is not None and not basis["included"],
        learned_tokens=learned_tokens,
    )
    (folder / CARD).write_text(text, encoding="utf-8")


def _without_markup(value: object) -> object:
    """Escape ``<`` in titles and file names, because pages that show the card would read it as HTML."""
    return value.replace("<", "&lt;") if isinstance(value, str) and not isinstance(value, Markup) else value


def _front_matter(card: ModelCard, catalog: Catalog, library: str) -> str:
    """Return the YAML at the top of the card, made by the hub's own library."""
    from huggingface_hub import EvalResult, ModelCardData

    cell, backbone = card.cell, catalog.backbone(card.cell.backbone.name)
    dataset = catalog.dataset(cell.dataset.name)
    scores = [
        EvalResult(
            task_type="image-classification",
            dataset_type=_hub_name(catalog.datasets.get(scored.dataset, dataset)) or scored.dataset,
            dataset_name=scored.dataset,
            dataset_split="test",
            metric_type="accuracy",
            metric_name="top-1 accuracy in per cent (95 % interval {:.2f} to {:.2f})".format(*scored.interval),
            metric_value=round(scored.accuracy, 2),
        )
        for scored in card.evaluations
    ]
    hub_name = _hub_name(dataset)
    data = ModelCardData(
        license="other",
        license_name="terms of the data and of the backbone",
        library_name=library,
        pipeline_tag="image-classification",
        tags=["clip", "few-shot", cell.method.name],
        base_model=_BASE_MODELS.get((backbone.architecture, backbone.weights.pretrained or "")),
        datasets=[hub_name] if hub_name else None,
        model_name=card.name,
        eval_results=scores or None,
    )
    return str(data.to_yaml())


def _hub_name(dataset: DatasetEntry) -> str | None:
    """Return the ``owner/name`` of a dataset from the hub; ``None`` for any other dataset."""
    return dataset.route.repo if isinstance(dataset.route, HuggingFaceRoute) else None
