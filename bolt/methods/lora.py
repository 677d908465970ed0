"""LoRA and DoRA: low-rank updates of the image tower's weight matrices; the text head can be adapted too.

LoRA (Hu et al., 2021, arXiv:2106.09685) adds ``alpha / r * B A`` to a weight matrix (m, n). A (r, n) starts at random
and B (m, r) at zero. DoRA (Liu et al., 2024, arXiv:2402.09353) also trains the length of every row of the new matrix.
open_clip stores query, key and value as one matrix. Here each of the three has its own adapter, so any of a block's six
matrices can be chosen. After training the adapters are merged, and the result is a plain tower.

By default the text head stays frozen. With ``towers: both`` the text tower gets the same adapters, and every step
encodes the names of all classes in the first prompt template. The resulting head has the class vectors of the adapted
text tower. The preset ``clip_lora_both`` is CLIP-LoRA (Zanella and Ben Ayed, 2024, arXiv:2405.18541), which adapts both
towers.

Under the switch ``lora: as_published``, ``lora`` follows the BOLT authors' code:

- Only the MLPs have working adapters. The adapter of the attention output is never called, and the code does not
  recognise the fused query-key-value matrix as a linear module.
- Every tensor outside open_clip's linear modules is trained in full. The head is trained too; its weights are
  multiplied by the logit scale.
- A is drawn uniformly within 1 / sqrt(r) instead of the usual 1 / sqrt(n), so its entries are about ten times larger.

Shape legend: B images, S image side, C classes, D joint embedding width, r rank, (m, n) a weight matrix (out, in).
"""

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.methods.base import Idle, TowerPasses, register_tower_training
from bolt.methods.common.adapters import AdapterSettings, adapted_blocks, attach_to_tower, merged_weight
from bolt.methods.common.prompts import TrainedText
from bolt.protocol import ADDED_LATER
from bolt.seeds import isolated_torch_rng
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import Trainable, train
from bolt.training.loop import TrainingRecipe

_LINEAR_IN_OPEN_CLIP = ("_proj.", ".mlp.c_fc.", ".attn.qkv.", ".attn.proj.", ".mlp.fc")
"""In open_clip's image tower, a tensor belongs to a linear module if its name contains one of these parts."""


@dataclass(frozen=True)
class LoraSettings(TrainingRecipe, AdapterSettings):
    """The adapters and the training recipe. The default rate is the larger of the BOLT authors' two rates.

    Attributes:
        towers: which towers have adapters: the ``image`` tower, or ``both``.
    """

    learning_rate: float = 1e-4
    towers: Literal["image", "both"] = field(default="image", metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.towers == "both" and self.match_sources:
            raise ValueError("match_sources is for the image tower only: set towers to image, or match_sources to 0")


def trainable_adapters(task: Task, settings: LoraSettings, dora: bool = False, published: bool = False) -> Trainable:
    """Return the backbone's tower with adapters to train. ``published`` also trains the tensors outside linear modules.

    Raises the errors of :func:`bolt.methods.common.adapters.adapted_blocks`.
    """
    base = task.backbone.tower
    path = base.tensor_paths()
    unfrozen = [name for name in path if published and not any(part in name for part in _LINEAR_IN_OPEN_CLIP)]
    tower = base.copy(trainable=unfrozen)
    matrices = attach_to_tower(tower, settings, dora, task.dataset, task.seed)
    if published:
        for name, tensor in tower.named_parameters():
            if name.endswith(".lora_A"):
                tensor.data.mul_(math.sqrt(tensor.shape[1] / settings.rank))  # bound 1 / sqrt(r), not 1 / sqrt(n)
    for name in unfrozen:
        tower.get_parameter(path[name]).requires_grad_()
    tower.train()  # training mode, which matters only to the adapters' dropout
    steps = itertools.count()

    def encode(images_B3SS: Tensor) -> Tensor:
        if not settings.dropout:
            return cast(Tensor, tower(images_B3SS))
        with isolated_torch_rng("lora", "dropout", task.dataset, task.seed, next(steps)):
            return cast(Tensor, tower(images_B3SS))

    def current() -> ImageTower:
        merged = {name: merged_weight(tower.get_submodule(module)) for name, module in matrices.items()}
        return base.replaced(merged | {name: tower.get_parameter(path[name]) for name in unfrozen})

    return Trainable(encode, [tensor for tensor in tower.parameters() if tensor.requires_grad], current)


_OVERRIDDEN = Idle(
    (
        *("weight_decay", "schedule", "warmup_fraction", "warmup_steps", "clip_norm", "accumulate"),
        *("targets", "last_blocks", "match_sources", "rank", "alpha", "rank_stabilised", "dropout", "towers"),
    ),
    {"lora": "sound"},
    noted=True,
)


def published_settings(settings: LoraSettings) -> LoraSettings:
    """Return the settings with the BOLT authors' adapters and recipe. Epochs, batch size and rate are not changed."""
    settings = replace(settings, weight_decay=0.0, schedule="halving", clip_norm=1.0, accumulate=1)
    settings = replace(settings, targets=("c_fc", "c_proj"), last_blocks=0, match_sources=0)
    return replace(settings, rank=8, alpha=32, rank_stabilised=False, dropout=0.0, towers="image")


def with_head(task: Task, tower: Trainable) -> Trainable:
    """Add a trained head on unit features to the tower. Its weights start at ``logit_scale * T``, its bias at zero."""
    head_CD = (task.backbone.logit_scale * task.head_CD.to(task.backbone.device)).requires_grad_()
    bias_C = torch.zeros(len(head_CD), device=head_CD.device, requires_grad=True)
    return replace(tower, parameters=[*tower.parameters, head_CD, bias_C], classify=LinearClassifier(head_CD, bias_C))


class AdaptedText(TrainedText):
    """The text tower with adapters, and the head of class vectors that it computes with the first prompt template."""

    def __init__(self, task: Task, settings: LoraSettings, dora: bool = False) -> None:
        self._dropout, self._steps = settings.dropout, itertools.count()
        tower = task.backbone.text_tower.copy()
        attach_to_tower(tower, settings, dora, "text", task.dataset, task.seed)
        super().__init__(task, tower)

    def classify(self, features_BD: Tensor) -> Tensor:
        """Return the logits (B, C) of raw features, in training. Every call encodes all classes, with new dropout."""
        self.tower.train()
        if not self._dropout:
            return super().classify(features_BD)
        with isolated_torch_rng("lora", "text dropout", self._task.dataset, self._task.seed, next(self._steps)):
            return super().classify(features_BD)


def adapt(task: Task, settings: LoraSettings, dora: bool = False) -> Adapted:
    """Train the adapters on the support and merge them."""
    published = task.protocol.lora == "as_published" and not dora  # the authors' code has no DoRA
    if published:
        settings = published_settings(settings)
    model = trainable_adapters(task, settings, dora, published)
    if published:
        model = with_head(task, model)
    blocks = adapted_blocks(task.backbone.tower, settings, dora)
    if settings.towers == "both":
        model = AdaptedText(task, settings, dora).joined(model)
        blocks += adapted_blocks(task.backbone.text_tower, settings, dora)
    return replace(train(task, model, settings), details={"adapters": blocks * len(settings.targets)})


# CLIP-LoRA takes 500 * k steps of 32 images. With C classes these are 16,000 / C epochs for every k, and 160 epochs for
# a hundred classes. Here it reads the same augmented views as all other methods.
_CLIP_LORA: dict[str, Any] = {
    "targets": ("q", "k", "v"),
    "rank": 2,
    "alpha": 1,
    "rank_stabilised": True,
    "dropout": 0.25,
    "epochs": 160,
    "batch_size": 32,
    "learning_rate": 2e-4,
    "weight_decay": 1e-2,
    "warmup_fraction": 0.0,
    "clip_norm": 0.0,
}
_PRESETS: dict[str, dict[str, Any]] = {
    "clip_lora": _CLIP_LORA,  # adapts the image tower only, under the usual text head
    "clip_lora_both": {**_CLIP_LORA, "towers": "both"},  # as published
    # The learning rate is BOLT's. There are slightly fewer parameters than BOLT has coefficients: 9,216 against 9,408
    # in ViT-B, and 18,432 against 18,624 in ViT-L/14.
    "matched": {"targets": ("v",), "rank": 1, "alpha": 1, "match_sources": 16, "learning_rate": 1e-3},
}


def _candidates(settings: LoraSettings) -> tuple[LoraSettings, ...]:
    """Return the BOLT authors' sweep: 0.3 and 1 times the given learning rate, by default 3e-5 and 1e-4."""
    # Rounded, so that 0.3 times 1e-4 is exactly 3e-5 in a cell's identity and in its details.
    rates = (float(f"{share * settings.learning_rate:.6g}") for share in (0.3, 1.0))
    return tuple(replace(settings, learning_rate=rate) for rate in rates)


def _tower_passes(support_size: int, settings: LoraSettings) -> TowerPasses:
    text_passes = settings.epochs * math.ceil(support_size / settings.batch_size) if settings.towers == "both" else 0
    return TowerPasses(training=settings.epochs * support_size, text_training=text_passes)


for _name, _title, _summary, _paper, _dora in (
    ("lora", "LoRA", "trains low-rank changes of the tower's matrices", "https://arxiv.org/abs/2106.09685", False),
    ("dora", "DoRA", "trains low-rank directions and magnitudes apart", "https://arxiv.org/abs/2402.09353", True),
):
    register_tower_training(
        name=_name,
        version=2,
        title=_title,
        palette=12 if _name == "dora" else 3,
        summary=_summary,
        paper=_paper,
        presets=_PRESETS,
        candidates=_candidates,
        baseline_crop=True,
        trains_text=lambda settings: settings.towers == "both",
        tower_passes=_tower_passes,
        training_forwards=2.0,
        idle=() if _dora else (_OVERRIDDEN,),
    )(partial(adapt, dora=_dora))
