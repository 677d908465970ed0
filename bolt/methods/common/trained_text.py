"""A text tower in training, and the head of class vectors that it computes from one prompt per class.

Shape legend: C classes, L tokens of the longest prompt, D joint embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bolt.clip.text_tower import TextTower
from bolt.methods.common.prompts import encode_tokens
from bolt.task.classifiers import CosineClassifier
from bolt.task.task import Task


class TrainedText:
    """A copy of the text tower, and the class names of a task.

    Args:
        task: the task, with class names.
        tower: a copy of the task's text tower. Its tensors that require a gradient are trained.
        template: the prompt, with ``{}`` for the class name; by default the task's first template.

    Attributes:
        tower: the copy.
        parameters: the tensors that are trained.
    """

    def __init__(self, task: Task, tower: TextTower, template: str | None = None) -> None:
        self._task, self.tower = task, tower
        self._template = task.class_text.templates[0] if template is None else template
        self.parameters = [tensor for tensor in tower.parameters() if tensor.requires_grad]
        self._tokens_CL = self._tokenize(task.class_text.class_names)

    def head(self) -> Tensor:
        """Return the unit text embeddings of the task's classes, (C, D), differentiable in ``parameters``."""
        return encode_tokens(self.tower, self._tokens_CL)

    @torch.no_grad()
    def embed_classes(self, class_names: Sequence[str]) -> Tensor:
        """Return the unit text embeddings (C, D) of class names with the current parameters, without dropout."""
        self.tower.eval()
        return encode_tokens(self.tower, self._tokenize(class_names))

    def classifier(self) -> CosineClassifier:
        """Return the classifier of the task's classes with the current parameters."""
        return self.classifier_of(self.embed_classes(self._task.class_text.class_names))

    def classifier_of(self, head_CD: Tensor) -> CosineClassifier:
        """Return the classifier of these unit class embeddings."""
        return CosineClassifier(head_CD, self._task.backbone.logit_scale)

    def _tokenize(self, class_names: Sequence[str]) -> Tensor:
        tokens_CL = self._task.backbone.tokenize([self._template.replace("{}", name) for name in class_names])
        return tokens_CL[:, : int(tokens_CL.argmax(dim=-1).max()) + 1]  # up to the last end token
