"""DMN: makes a class vector for every query from a memory of each class, without training (Zhang et al., CVPR 2024).

Paper: "Dual memory networks", arXiv:2403.17589. The memory of a class has rows of unit length. The first row is the
text embedding. The other rows are features of the support images in the static memory, and of the test images so far in
the dynamic memory. For a query f, the vector of a class is the sum of the class's rows m, with the weights
``exp(-beta (1 - f . m))``, and then normalised. p' are the class probabilities by these vectors, and p are the
probabilities by the text alone. The prediction is ``p + factor p'``.

With labelled images, the method uses the static memory of the un-augmented support. On the test-time track, it uses the
dynamic memory. The test images come one after another, in the order that the task's seed gives. An image enters the
memory before it is classified. It becomes a row of the class that the text predicts, if this class has a free row or a
row of higher entropy. What differs from the official code:

- ``factor`` is 1, the median of the factors that the authors chose for eleven datasets by test labels.
- An image has one view by default; the official code has 32. With ``views``, the predicted class and its entropy are
  computed as in the official code: from the mean of p over the 10 per cent of the views with the lowest entropy. The
  official crops keep half of the image or more; here all methods that read views share the same crops.
- A saved model has the memory as it is after the last image. ``details`` give the share of images for which the saved
  model predicts the class that was predicted when the image came.

Shape legend: N images, C classes, D joint embedding width, R rows of a class.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bolt.methods.base import Idle, register
from bolt.methods.common.frozen_features import entropies, unit_support_features, unit_test_features
from bolt.methods.tda import LowestEntropies
from bolt.task.classifiers import MemoryClassifier
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.util.ranges import AtLeast1, Checked, NotNegative, Range, Share

_SMALL = 1e-5


@dataclass(frozen=True)
class DmnSettings(Checked):
    """The memory, and the weight of its probabilities.

    Attributes:
        beta: how fast the weight of a row falls with the row's distance from the query.
        factor: weight of the memory's probabilities; the probabilities by the text have the weight 1.
        capacity: number of test images that a class remembers.
        when_full: when a new image replaces the image of highest entropy in a full class. ``higher_entropy``: only if
            the new image has a lower entropy. ``always``: in any case, as in a benchmark of test-time methods.
        views: views of each test image, the un-augmented one included.
        kept: share of the views, those of lowest entropy, whose mean probabilities predict the image's class.
    """

    beta: NotNegative = 5.5
    factor: NotNegative = 1.0
    capacity: AtLeast1 = 50
    when_full: Literal["higher_entropy", "always"] = "higher_entropy"
    views: AtLeast1 = 1
    kept: Share = 0.1


class DynamicMemory:
    """The memory of the test images so far. A class has rows: first its text embedding, then image features.

    Attributes:
        classifier: the classifier with the current memory.
        kept: class -> the indices of the test images that the rows of this class hold, in the order of the rows.
    """

    def __init__(self, head_CD: Tensor, scale: float, settings: DmnSettings) -> None:
        classes, width = head_CD.shape
        rows_CRD = torch.zeros(classes, 1 + settings.capacity, width).to(head_CD)
        rows_CRD[:, 0] = head_CD
        self.classifier = MemoryClassifier(head_CD, rows_CRD, scale, settings.beta, settings.factor)
        self.kept: dict[int, list[int]] = {}
        self._entropies, self._settings = LowestEntropies(settings.capacity), settings

    def insert(self, number: int, unit_VD: Tensor) -> None:
        """Insert an image, given as its views, into the memory of the class that the text predicts.

        The setting ``when_full`` decides whether the image enters the memory of a full class.
        """
        logits_VC = self.classifier.scale * unit_VD @ self.classifier.head_CD.T
        surest = entropies(logits_VC).argsort(stable=True)[: max(1, int(self._settings.kept * len(logits_VC)))]
        p_C = logits_VC[surest].softmax(dim=-1).mean(dim=0)
        entropy = float(-(p_C * (p_C + _SMALL).log()).sum())
        predicted = int(p_C.argmax())
        row = self._entropies.insert(predicted, entropy)
        if row is None and self._settings.when_full == "always":
            remembered = self._entropies.entropies[predicted]
            row = max(range(len(remembered)), key=remembered.__getitem__)
            remembered[row] = entropy
        if row is not None:
            self.classifier.rows_CRD[predicted, 1 + row] = unit_VD[0]
            kept = self.kept.setdefault(predicted, [])
            kept[row : row + 1] = [number]


def support_memory(task: Task, settings: DmnSettings) -> MemoryClassifier:
    """Return the classifier whose rows are the text and the un-augmented support images."""
    unit_ND, labels_N = unit_support_features(task, EVALUATION_VIEW), task.support.labels_N.tolist()
    head_CD = task.head_CD.to(unit_ND)
    most = max(labels_N.count(label) for label in set(labels_N))
    rows_CRD, filled = torch.zeros(len(head_CD), 1 + most, head_CD.shape[1]).to(head_CD), [1] * len(head_CD)
    rows_CRD[:, 0] = head_CD
    for label, unit_D in zip(labels_N, unit_ND, strict=True):
        rows_CRD[label, filled[label]] = unit_D
        filled[label] += 1
    return MemoryClassifier(head_CD, rows_CRD, task.backbone.logit_scale, settings.beta, settings.factor)


@register(
    title="DMN",
    palette=49,
    summary="makes a classifier for each image from a memory of features, beside the text head",
    paper="https://arxiv.org/abs/2403.17589",
    tracks=frozenset({"fewshot", "ood", "meta", "tta_stream"}),
    support_feature_views=lambda settings: EVALUATION_VIEW,
    test_views=lambda settings: settings.views if settings.views > 1 else 0,
    idle=(
        Idle(("capacity", "when_full", "views", "kept"), {"track": "tta_stream"}),
        Idle(("kept",), {"views": Range("at least 2", lambda views: views > 1)}),
    ),
)
def adapt(task: Task, settings: DmnSettings) -> Adapted:
    """Fill the memory with the support, or with the test images one after another."""
    if task.unlabelled is None:
        return Adapted(support_memory(task, settings))
    unit_ND = unit_test_features(task)
    views_NVD = unit_test_features(task, settings.views) if settings.views > 1 else unit_ND[:, None]
    memory = DynamicMemory(task.head_CD.to(unit_ND), task.backbone.logit_scale, settings)
    online_NC = torch.empty(len(unit_ND), len(task.head_CD))
    for image in task.test_images.order("dmn", 0, len(unit_ND)).tolist():
        memory.insert(image, views_NVD[image])
        online_NC[image] = memory.classifier(unit_ND[image][None])[0]
    used = 1 + max(map(len, memory.kept.values()), default=0)
    final = replace(memory.classifier, rows_CRD=memory.classifier.rows_CRD[:, :used].clone())
    alike = float((final(unit_ND).argmax(dim=-1).cpu() == online_NC.argmax(dim=-1)).float().mean())
    return Adapted(final, details={"agreement_with_final": 100 * alike}, fixed_NC=online_NC)
