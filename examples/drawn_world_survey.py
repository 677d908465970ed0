"""Measure accuracies in the drawn world: zero-shot, with the mean task vector of the siblings, and fine-tuned.

    python examples/drawn_world_survey.py
    python examples/drawn_world_survey.py --domains real --data-root PATH --zero-shot-only

The siblings of a dataset are the other datasets of its domain. The script prints one line per dataset. Unlike the
benchmark, it uses one seed and no augmentation. A variant of a task uses the siblings, the fine-tuned tower and the
class names of that task.
"""

from __future__ import annotations

import argparse
import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.catalog import DatasetEntry, load_catalog
from orchestrator.core.intervals import wilson_interval
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.part import Part, RawDataset
from orchestrator.drawn_world.tasks import TASKS, VARIANTS

EPOCHS, BATCH, PEAK = 8, 32, 5e-4

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Survey:
    """A decoded dataset: splits of inputs (n, 3, 32, 32) and labels (n,), and the head (classes, 64) in logit scale."""

    entry: DatasetEntry
    target: str
    """The dataset whose class names, siblings and fine-tuned tower are used: this dataset, or a variant's original."""
    head: Tensor
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def prepare(model: Any, entry: DatasetEntry, raw: RawDataset) -> Survey:
    """Decode a dataset with CLIP's transform and encode its prompts."""
    target = VARIANTS.get(entry.name, entry.name)
    names = raw.class_names if target == entry.name else TASKS[target].class_names
    place = torch.tensor([names.index(words) for words in raw.class_names])
    transform = open_clip.image_transform(32, is_train=False)
    tokenizer = open_clip.SimpleTokenizer(context_length=model.context_length)

    def tensors(part: Part) -> tuple[Tensor, Tensor]:
        pixels = [transform(part.read(i)) for i in range(len(part))]
        return torch.stack(pixels) if pixels else torch.empty(0, 3, 32, 32), place[torch.from_numpy(part.labels)]

    rows = []
    for words in names:
        texts = model.encode_text(tokenizer([prompt.format(words) for prompt in entry.prompts]), normalize=True)
        rows.append(functional.normalize(texts.mean(0), dim=-1))
    head = model.logit_scale.exp() * torch.stack(rows)
    return Survey(entry, target, head, tensors(raw.train), tensors(raw.test))


@torch.no_grad()
def accuracy(tower: nn.Module, head: Tensor, inputs: Tensor, labels: Tensor) -> float:
    """Return the accuracy in per cent."""
    parts = (inputs[start : start + 512] for start in range(0, len(inputs), 512))
    guesses = torch.cat([(functional.normalize(tower(part), dim=-1) @ head.T).argmax(-1) for part in parts])
    return 100.0 * float((guesses == labels).float().mean())


def fine_tune(tower: nn.Module, head: Tensor, inputs: Tensor, labels: Tensor) -> nn.Module:
    """Return a copy of the tower trained against the frozen head."""
    tower = copy.deepcopy(tower).train()
    optimiser = torch.optim.AdamW(tower.parameters(), lr=PEAK, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    batches = len(inputs) // BATCH
    for step in range(EPOCHS * batches):
        if step % batches == 0:
            order = torch.randperm(len(inputs), generator=generator)
        chosen = order[step % batches * BATCH :][:BATCH]
        part = step / (EPOCHS * batches)
        for group in optimiser.param_groups:
            group["lr"] = PEAK * min(10 * part + 0.01, 0.5 * (1 + math.cos(math.pi * part)))
        logits = functional.normalize(tower(inputs[chosen]), dim=-1) @ head.T
        optimiser.zero_grad()
        torch.autograd.backward(functional.cross_entropy(logits, labels[chosen]))
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimiser.step()
    return tower.eval()


def moved(tower: nn.Module, vectors: list[Weights]) -> nn.Module:
    """Return a copy of the tower, moved by the mean of some task vectors."""
    tower = copy.deepcopy(tower)
    weights = tower.state_dict()
    for name, weight in weights.items():
        weight += torch.stack([vector[name] for vector in vectors]).mean(0)
    return tower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("grids/backbones/tiny-clip.json"))
    parser.add_argument("--weights", type=Path, default=Path("grids/backbones/tiny-clip.safetensors"))
    parser.add_argument("--domains", nargs="+", default=["glyphs", "aerial"])
    parser.add_argument("--data-root", type=Path, help="folder of the real datasets")
    parser.add_argument("--zero-shot-only", action="store_true", help="train nothing, and measure on both splits")
    options = parser.parse_args()
    torch.set_num_threads(1)  # with small matrices, more threads are not faster
    open_clip.add_model_config(options.config)
    model = open_clip.create_model(options.config.stem, pretrained=str(options.weights)).eval().requires_grad_(False)
    entries = [entry for entry in load_catalog().datasets.values() if entry.domain in options.domains]
    surveys = [prepare(model, entry, open_dataset(entry, options.data_root)) for entry in entries]
    if options.zero_shot_only:
        for survey in surveys:
            inputs, labels = (torch.cat(both) for both in zip(survey.train, survey.test, strict=True))
            percent = accuracy(model.visual, survey.head, inputs, labels)
            chance = 100.0 / survey.entry.classes
            low, high = wilson_interval(percent / 100.0, len(labels))
            print(
                f"{survey.entry.name:22} n {len(labels):5}  chance {chance:5.1f}  zero-shot {percent:5.1f}"
                f"  ({low:.1f} to {high:.1f})",
                flush=True,
            )
        return
    trainable = copy.deepcopy(model.visual).requires_grad_(True)
    before = model.visual.state_dict()
    vectors: dict[str, Weights] = {}
    towers: dict[str, nn.Module] = {}
    for survey in surveys:
        if survey.entry.has_training_images:
            name = survey.entry.name
            towers[name] = fine_tune(trainable, survey.head, *survey.train)
            vectors[name] = {key: weight - before[key] for key, weight in towers[name].state_dict().items()}
    domains = {survey.entry.name: survey.entry.domain for survey in surveys}
    for survey in surveys:
        name, domain, target = survey.entry.name, survey.entry.domain, survey.target
        siblings = [vector for other, vector in vectors.items() if domains[other] == domain and other != target]
        zero = accuracy(model.visual, survey.head, *survey.test)
        helped = accuracy(moved(model.visual, siblings), survey.head, *survey.test)
        tuned = accuracy(towers[target], survey.head, *survey.test)
        print(
            f"{name:22} classes {survey.entry.classes:3}  zero-shot {zero:5.1f}  siblings {helped:5.1f}"
            f"  fine-tuned {tuned:5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
