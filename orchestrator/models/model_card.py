"""The model card of an exported model: a README.md with the front matter that Hugging Face's hub reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from bolt.methods import METHODS
from bolt.model.saving import INDEX, Form
from orchestrator.catalog import BackboneEntry, Catalog, DatasetEntry
from orchestrator.catalog.routes import HuggingFaceRoute
from orchestrator.store.results import Result

CARD = "README.md"
_LIBRARY: dict[Form, str] = {"adapter": "bolt", "state_dict": "open_clip", "huggingface": "transformers"}
_BASE_MODELS = {
    ("ViT-B-32", "openai"): "openai/clip-vit-base-patch32",
    ("ViT-B-16", "openai"): "openai/clip-vit-base-patch16",
    ("ViT-L-14", "openai"): "openai/clip-vit-large-patch14",
}
"""open_clip's architecture and tag -> the same weights in the hub."""


def write_card(result: Result, catalog: Catalog, folder: Path, form: Form) -> None:
    """Write the card of a cell's model into the folder in which the model was saved in this form."""
    (folder / CARD).write_text("\n".join(_lines(result, catalog, folder, form)) + "\n", encoding="utf-8")


def _lines(result: Result, catalog: Catalog, folder: Path, form: Form) -> Iterator[str]:
    cell = result.cell
    method, backbone = METHODS[cell.method.name], catalog.backbone(cell.backbone.name)
    dataset = catalog.dataset(cell.dataset.name)
    yield f"---\n{_front_matter(result, catalog, form)}---\n"
    yield f"# {method.title} on {dataset.title}\n"
    yield f"An image classifier for {dataset.classes} classes: {backbone.title}, adapted with {method.title}."
    if method.summary:
        yield f"{method.title} {method.summary}."
    yield "\n## Accuracy\n"
    yield "| test images of | accuracy | 95 % interval | images | zero-shot |\n|---|---|---|---|---|"
    for scored in result.evaluations:
        low, high = scored.interval
        yield (
            f"| {scored.dataset} | {scored.accuracy:.2f} % | {low:.2f} % to {high:.2f} % | {scored.total:,} "
            f"| {scored.accuracy_zero_shot:.2f} % |"
        )
    yield "\nThe interval says what other test images of the same kind would give. Other training images are not in it."
    yield f"Zero-shot is the same backbone without adaptation. Cell: `{cell.id}`, protocol `{cell.protocol.name}`."
    if cell.protocol.selects_on_test:
        yield "Under this protocol, test labels may have chosen a setting."
    yield f"\n## Method\n\n{method.title} ({method.paper or 'no paper'}), version {cell.method.version}.\n"
    yield f"- trained values: {result.trainable_parameters:,}"
    yield from (f"- `{name}`: {json.dumps(value, ensure_ascii=False)}" for name, value in cell.method.settings)
    yield "\n## Data\n"
    yield from _data(result, dataset, catalog)
    yield f"\n## How to load\n\n{_loading(cell.id, backbone, folder, form)}"
    versions = ", ".join(f"{name} {version}" for name, version in result.manifest.versions.items())
    yield f"\nMeasured with {versions} on {result.manifest.device}."


def _front_matter(result: Result, catalog: Catalog, form: Form) -> str:
    """The YAML of the card, made by the hub's own library."""
    from huggingface_hub import EvalResult, ModelCardData

    cell, backbone = result.cell, catalog.backbone(result.cell.backbone.name)
    dataset = catalog.dataset(cell.dataset.name)
    scores = []
    for scored in result.evaluations:
        low, high = scored.interval
        scores.append(
            EvalResult(
                task_type="image-classification",
                dataset_type=_hub_name(catalog.datasets.get(scored.dataset, dataset)) or scored.dataset,
                dataset_name=scored.dataset,
                dataset_split="test",
                metric_type="accuracy",
                metric_name=f"top-1 accuracy in per cent (95 % interval {low:.2f} to {high:.2f})",
                metric_value=round(scored.accuracy, 2),
            )
        )
    hub_name = _hub_name(dataset)
    card = ModelCardData(
        license="other",
        license_name="terms of the data and of the backbone",
        library_name=_LIBRARY[form],
        pipeline_tag="image-classification",
        tags=["clip", "few-shot", cell.method.name],
        base_model=_BASE_MODELS.get((backbone.architecture, backbone.weights.pretrained or "")),
        datasets=[hub_name] if hub_name else None,
        model_name=cell.id,
        eval_results=scores,
    )
    return f"{card.to_yaml()}\n"


def _hub_name(dataset: DatasetEntry) -> str | None:
    """``owner/name`` of a dataset that comes from the hub."""
    return dataset.route.repo if isinstance(dataset.route, HuggingFaceRoute) else None


def _data(result: Result, dataset: DatasetEntry, catalog: Catalog) -> Iterator[str]:
    cell = result.cell
    yield f"- adapted to: {dataset.title} (`{dataset.name}`), {result.support_size:,} labelled images, seed {cell.seed}"
    if cell.shots:
        yield f"- labelled images per class: {cell.shots}"
    yield f"- licence of the images: {dataset.licence}"
    if dataset.source:
        yield f"- described at {dataset.source}"
    if cell.sources:
        yield "- fine-tuned source models, with the licences of their images:"
        for source in cell.sources:
            entry = catalog.datasets.get(source.dataset)
            yield f"  - {source.dataset}: {entry.licence if entry else 'not in the catalog'}"


def _loading(cell: str, backbone: BackboneEntry, folder: Path, form: Form) -> str:
    """Code that loads the model from its folder."""
    lines, given = ["import bolt", ""], '"."'
    if form == "adapter":
        weights = backbone.weights.pretrained or backbone.weights.file
        activation = ", quick_gelu=True" if backbone.weights.file and backbone.quick_gelu else ""
        lines.append(f"backbone = bolt.load_backbone({backbone.architecture!r}, {weights!r}{activation})")
        given += ", backbone"
        basis = json.loads((folder / INDEX).read_text(encoding="utf-8")).get("basis")
        if basis is not None and not basis["included"]:
            where = f"python -m orchestrator sources export sources --cell {cell}"
            lines += [f"# the source models listed above: {where}", 'sources = bolt.load_sources("sources", backbone)']
            given += ", sources"
    lines.append(f"model = bolt.load_model({given})  # the folder of this file")
    lines += ['(prediction,) = model.predict(["photo.jpg"])', "print(prediction.label, prediction.score)"]
    lines += ["```", "", "`bolt.json` has the class names in the order of the logits, and the preprocessing."]
    return "\n".join(["```python", *lines])
