"""ProLIP: trains the visual projection, held near its pre-trained value (Fahes et al., 2024, arXiv:2410.05270).

Only the projection W (d, D) from the tower's width to the joint embedding is trained: 393,216 parameters in ViT-B,
786,432 in ViT-L/14. The loss is ``CE(logit_scale cos(x W, T)) + lambda |W - W0|^2`` with the pre-trained projection W0
and the sum of squares. One step takes all support images in one augmented view. As in the official code: Adam with
epsilon 1e-4, 300 steps, a cosine to zero without warm-up, no clipping, the last step kept. The text head stays frozen.

The authors tune the rate and lambda on labelled validation images. Without validation images, they set lambda to 1/k
for k shots, and run several rates. Here:

- lambda is 1/k, and the rate is 1e-4, which the authors use in combinations with other methods. Their other runs have a
  rate of 1e-5, but with weights in half precision. With the penalty, the rate matters little: with k = 1, all rates
  of at least 1e-4 end at the same minimum in a simulation of ViT-B's size.
- The steps cycle through 20 views, as many as the other methods read. The authors draw 300 views.

The images pass through the frozen tower once per view. A step is then one small matrix product.

Shape legend: N support images, C classes, W width of the tower, D joint embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bolt.clip.tensor_names import PROJECTION
from bolt.clip.tower import replace_matrix, replace_tensors
from bolt.clip.tower_shape import UnsupportedTower
from bolt.methods.base import TowerPasses, register_tower_training
from bolt.task.classifiers import CosineClassifier
from bolt.task.task import Adapted, Task
from bolt.training.loop import Curve, MetricsCallback, PlainRecipe, cross_entropy, fit
from bolt.util.ranges import AtLeast1, Checked, NotNegative, Positive

_ENCODE_BATCH = 256


@dataclass(frozen=True)
class ProLipSettings(Checked):
    """The settings of ProLIP.

    Attributes:
        learning_rate, epsilon: hyperparameters of Adam.
        steps: number of steps; each takes all support images.
        views: number of augmented views that the steps cycle through.
        regularisation: lambda, the weight of the squared distance to the pre-trained projection; by default 1/k for k
            images per class.
    """

    learning_rate: Positive = 1e-4
    epsilon: Positive = 1e-4
    steps: AtLeast1 = 300
    views: AtLeast1 = 20
    regularisation: NotNegative | None = None


def train_projection(
    projection_WD: Tensor,
    views_NW: Sequence[Tensor],
    labels_N: Tensor,
    head_CD: Tensor,
    logit_scale: float,
    settings: ProLipSettings,
    report: MetricsCallback = lambda step, metrics: None,
) -> Curve:
    """Train the projection in place; return the loss and the rate of every step.

    Args:
        projection_WD: the pre-trained projection, a leaf tensor that requires a gradient.
        views_NW: per view, the features of all support images before the projection.
        labels_N: class of each image.
        head_CD: unit text embeddings.
        report: see :func:`bolt.training.loop.fit`; an epoch is one step.

    Raises:
        bolt.training.loop.Diverged: if the loss or the projection becomes NaN or infinite.
    """
    start_WD, size = projection_WD.detach().clone(), len(labels_N)
    classify = CosineClassifier(head_CD, logit_scale)
    shots = size / len(head_CD)
    weight = 1 / shots if settings.regularisation is None else settings.regularisation

    def loss_of_rows(step: int, rows: Tensor) -> Tensor:
        features_NW = views_NW[(step + 1) % len(views_NW)]  # step 0 reads the second view, as in the official code
        distance = (projection_WD - start_WD).square().sum()
        return cross_entropy(classify(features_NW @ projection_WD), labels_N) + weight * distance

    recipe = PlainRecipe(settings.steps, size, settings.learning_rate, epsilon=settings.epsilon)
    return fit([projection_WD], loss_of_rows, lambda step: torch.arange(size), recipe, report=report)


@register_tower_training(
    title="ProLIP",
    palette=34,
    summary="trains the visual projection, held near its start",
    paper="https://arxiv.org/abs/2410.05270",
    clips_own_tower=True,
    tracks=frozenset({"fewshot", "ood"}),
    tower_passes=lambda support_size, settings: TowerPasses(forward=settings.views * support_size),
)
def adapt(task: Task, settings: ProLipSettings) -> Adapted:
    """Encode the views without the projection, and train the projection on them.

    Raises ``UnsupportedTower`` for a tower that does not end with a named projection, such as one of timm.
    """
    backbone, support = task.backbone, task.support
    if PROJECTION not in backbone.tower.tensor_paths():
        raise UnsupportedTower("this image tower does not end with a projection that can be trained")
    trunk = backbone.tower.copy()
    replace_matrix(trunk, PROJECTION, lambda linear: nn.Identity())
    batches = torch.split(torch.arange(len(support)), _ENCODE_BATCH)
    with torch.no_grad():
        views_NW = [
            torch.cat([trunk(backbone.normalise(support.pixels(view, rows))).float() for rows in batches])
            for view in range(1, settings.views + 1)
        ]
    projection_WD = backbone.tower.state_dict_open_clip()[PROJECTION].float().clone().requires_grad_()
    labels_N, head_CD = support.labels_N.to(backbone.device), task.head_CD.to(backbone.device)
    train_projection(projection_WD, views_NW, labels_N, head_CD, backbone.logit_scale, settings, task.report)
    tower = replace_tensors(backbone.tower, {PROJECTION: projection_WD.detach()})
    return Adapted(task.text_head, tower, projection_WD.numel())
