"""Small random CLIPs, and a small task to adapt them to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import open_clip
import torch
from torch import Tensor

from bolt.clip.augment import augmented_view, evaluation_view
from bolt.clip.backbone import Backbone
from bolt.clip.input_size import InputSize
from bolt.clip.tower_shape import TowerShape
from bolt.protocol import STRICT, Protocol
from bolt.seeds import torch_generator
from bolt.spectral.bases import Basis
from bolt.spectral.directions import Directions, top_directions
from bolt.spectral.sources import Sources
from bolt.task.support import batch_order, draw_support
from bolt.task.task import Adapted, ClassText, Support, Task, Unlabelled

VIT_B32 = TowerShape(224, 32, 768, 12, 12, 3072, 512, "quick_gelu")
VIT_L14 = TowerShape(224, 14, 1024, 24, 16, 4096, 768, "quick_gelu")
"""The shapes of the image towers on which the papers count trained numbers."""
CONTEXT, VOCABULARY = 16, 64
SIZE = 32


def random_clip(
    *, quick_gelu: bool = False, layers: int = 2, width: int = 32, heads: int = 2, embed: int = 16, **vision: Any
) -> open_clip.CLIP:
    """Return a small open_clip model with random weights; ``vision`` overrides its vision configuration."""
    config = {
        "image_size": SIZE,
        "patch_size": 8,
        "layers": layers,
        "width": width,
        "head_width": width // heads,
        **vision,
    }
    text = {"context_length": CONTEXT, "vocab_size": VOCABULARY, "width": 16, "heads": 2, "layers": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return open_clip.CLIP(embed, config, text, quick_gelu=quick_gelu).eval()


def tokenize(prompts: Iterable[str]) -> Tensor:
    """Return the characters as tokens, followed by the largest token, which ends a text in CLIP."""
    rows = [[ord(letter) % (VOCABULARY - 2) for letter in prompt][: CONTEXT - 1] for prompt in prompts]
    return torch.tensor([row + [VOCABULARY - 1] + [0] * (CONTEXT - 1 - len(row)) for row in rows])


def random_backbone(**changes: Any) -> Backbone:
    return Backbone.from_open_clip(random_clip(**changes), tokenize, "tiny")


class GivenSources(Sources):
    """Sources whose task vectors are given."""

    def __init__(self, vectors: dict[str, dict[str, Tensor]]) -> None:
        self.vectors = vectors

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.vectors)

    def directions(self, matrix: str, top_k: int) -> Sequence[Directions]:
        return [top_directions(vector[matrix], top_k) for vector in self.vectors.values()]

    def task_vector(self, source: str) -> Mapping[str, Tensor]:
        return self.vectors[source]


class RandomSources(GivenSources):
    """Sources whose task vectors are random and related to one another."""

    def __init__(self, backbone: Backbone, count: int = 4, scale: float = 0.02) -> None:
        generator = torch.Generator().manual_seed(7)
        base = backbone.tower.state_dict_open_clip()

        def noise() -> dict[str, Tensor]:
            return {name: scale * torch.randn(t.shape, generator=generator) for name, t in base.items()}

        common = noise()
        super().__init__(
            {f"source_{index}": {name: common[name] + own for name, own in noise().items()} for index in range(count)}
        )


def _no_support(*arguments: object) -> Tensor:
    raise AssertionError("the support of the test-time track was looked at")


NO_SUPPORT = Support(
    labels_N=torch.empty(0, dtype=torch.long),
    indices_N=torch.empty(0, dtype=torch.long),
    pixels=_no_support,
    features=_no_support,
    order=_no_support,
)


def make_task(
    backbone: Backbone,
    *,
    shots: int = 4,
    classes: int = 3,
    seed: int = 1,
    protocol: Protocol = STRICT,
    sources: Sources | None = None,
    report: Callable[[int, Mapping[str, float]], None] = lambda epoch, metrics: None,
    unlabelled: bool = False,
    per_class: int = 10,
) -> Task:
    """Return a task of noisy colour blobs: each class has a colour and ``per_class`` images.

    With ``unlabelled`` the task is one of the test-time track: all images without labels, and an empty support that
    raises when it is read. It has an oracle if the protocol asks for one.
    """
    generator = torch.Generator().manual_seed(3)
    labels = np.repeat(np.arange(classes), per_class)
    colours = torch.randint(40, 216, (classes, 3, 1, 1), generator=generator)
    noise = torch.randint(-40, 40, (len(labels), 3, SIZE, SIZE), generator=generator)
    images = (colours[torch.from_numpy(labels)] + noise).to(torch.uint8)

    def view_of(view: int, index: int) -> Tensor:
        if view == 0:
            return evaluation_view(images[index], InputSize(SIZE))
        return augmented_view(images[index], SIZE, "blobs", seed, view, index)

    text = ClassText(tuple(f"colour {label}" for label in range(classes)), ("{}", "a blob of {}"))
    head = backbone.zero_shot_head(text.class_names, text.templates)
    sources = sources or RandomSources(backbone)
    task = Task(backbone, head, NO_SUPPORT, sources, protocol, "blobs", seed, report, text=text)
    if unlabelled:
        everything = torch.arange(len(labels))

        def all_pixels(view: int, rows: Tensor) -> Tensor:
            return torch.stack([view_of(view, row) for row in rows.tolist()])

        def shuffled(stream: str, number: int, size: int) -> Tensor:
            return torch.randperm(size, generator=torch_generator("order", "blobs", seed, stream, number, size))

        def oracle(adapted: Adapted) -> float:
            features_ND = backbone.encode_images(images, adapted.tower)
            predicted_N = adapted.classify(features_ND).detach().argmax(dim=-1)
            return 100 * float((predicted_N == torch.from_numpy(labels)).float().mean())

        return replace(
            task,
            unlabelled=Unlabelled(
                size=len(labels),
                pixels=all_pixels,
                features=lambda: backbone.encode_images(all_pixels(0, everything)),
                order=shuffled,
                view_features=lambda count: torch.stack(
                    [backbone.encode_images(all_pixels(view, everything)) for view in range(count)], dim=1
                ),
            ),
            oracle=oracle if protocol.selects_on_test("tta") else None,
        )
    indices = draw_support(labels, shots, dataset="blobs", seed=seed)
    everything = torch.arange(len(indices))

    def pixels(view: int, rows: Tensor) -> Tensor:
        return torch.stack([view_of(view, int(indices[row])) for row in rows.tolist()])

    support = Support(
        labels_N=torch.from_numpy(labels[indices]),
        indices_N=torch.from_numpy(indices),
        pixels=pixels,
        features=lambda view: backbone.encode_images(pixels(view, everything)),
        order=lambda epoch: batch_order(len(indices), dataset="blobs", seed=seed, epoch=epoch),
    )
    return replace(task, support=support, initial=backbone.tower.state_dict_open_clip())


def weights_of(adapted: Adapted) -> Mapping[str, Tensor]:
    """Return the tensors of the adapted tower by open_clip's names."""
    return adapted.tower.state_dict_open_clip()


def moved_tensors(backbone: Backbone, adapted: Adapted) -> set[str]:
    """Return the names of the tensors in which the adapted tower differs from the backbone's."""
    before, after = backbone.tower.state_dict_open_clip(), weights_of(adapted)
    return {name for name in before if not torch.equal(before[name], after[name])}


def merge(weight: Tensor, basis: Basis, s: Tensor) -> Tensor:
    """Return W + U diag(s) V^T, (m, n)."""
    return torch.addmm(weight, basis.u * s, basis.v.mT)
