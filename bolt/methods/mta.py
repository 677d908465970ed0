"""MTA: the mode of an image's views, found by mean shift with a trust in each view (Zanella and Ben Ayed, CVPR 2024).

Paper: arXiv:2405.02266. A density is estimated from the unit features f_p of 64 views of a test image. The logits of
the image are ``scale m t`` for the mode m of this density and the text embeddings t. The trust y_p in a view is higher
if other views agree with it::

    e_p = exp(-|f_p - m|^2 / (2 h_p^2)),    y <- softmax((e + 4 A y) / 0.2),    m <- unit(sum_p e_p y_p f_p)

``A = P P^T`` compares the class probabilities P of the views. h_p^2 is half the mean squared distance of view p to the
30 per cent nearest other views. There are five rounds, each with up to five steps of y and then of m. Nothing is
trained, and no other image is read. What differs from the official code:

- A squared bandwidth below 1e-12 is set to 1e-12. Equal views would have a bandwidth of zero.
- A bandwidth is computed from at least one other view.

Shape legend: N images, V views, C classes, D joint embedding width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import register
from bolt.methods.common.frozen_features import unit_test_features
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast2, Checked, NotNegative, Positive, Share

_ROUNDS, _STEPS = 5, 5
_SETTLED, _MIN_SQUARE = 1e-6, 1e-12


@dataclass(frozen=True)
class MtaSettings(Checked):
    """The official settings, which are the same for every dataset.

    Attributes:
        views: views of each image, the un-augmented one first.
        neighbours: share of the other views that are a view's neighbours. These are the nearest views; the bandwidth
            of the view is computed from the distances to them.
        temperature: temperature of the softmax that gives the trust y; the paper's lambda_y.
        agreement: weight of the agreement between views; the paper's lambda_q.
    """

    views: AtLeast2 = 64
    neighbours: Share = 0.3
    temperature: Positive = 0.2
    agreement: NotNegative = 4.0


def find_mode(unit_VD: Tensor, head_CD: Tensor, scale: float, settings: MtaSettings) -> Tensor:
    """Return the mode m (D,) of one image's views, of unit length in float64. The search starts from the first view."""
    unit_VD, head_CD = unit_VD.double(), head_CD.double()
    views = len(unit_VD)
    squared_VV = (unit_VD[:, None] - unit_VD).square().sum(dim=-1)
    nearest = squared_VV.sort(dim=-1).values[:, 1 : 1 + max(1, int(settings.neighbours * (views - 1)))]
    squares_V = (0.5 * nearest.mean(dim=-1)).clamp_min(_MIN_SQUARE)
    p_VC = (scale * unit_VD @ head_CD.T).softmax(dim=-1)
    agreement_VV = settings.agreement * p_VC @ p_VC.T
    trust_V, mode_D = torch.full_like(squares_V, 1 / views), unit_VD[0]

    def density(mode_D: Tensor) -> Tensor:
        return torch.exp(-(unit_VD - mode_D).square().sum(dim=-1) / (2 * squares_V))

    for _ in range(_ROUNDS):
        density_V = density(mode_D)
        for _ in range(_STEPS):
            before = trust_V
            trust_V = ((density_V + agreement_VV @ trust_V) / settings.temperature).softmax(dim=-1)
            if float((trust_V - before).norm()) < _SETTLED:
                break
        for _ in range(_STEPS):
            before = mode_D
            weight_V = density_V * trust_V
            mode_D = F.normalize(weight_V @ unit_VD / weight_V.sum(), dim=-1)
            density_V = density(mode_D)
            if float((mode_D - before).norm()) < _SETTLED:
                break
    return mode_D


@register(
    title="MTA",
    palette=52,
    summary="classifies the mode of an image's views, which trusts views that agree",
    paper="https://arxiv.org/abs/2405.02266",
    tracks=frozenset({"tta_image"}),
    test_views=lambda settings: settings.views,
)
def adapt(task: Task, settings: MtaSettings) -> Adapted:
    """Classify every test image by the mode of its views.

    The returned classifier is the text head. It classifies images that come without views.
    """
    unit_NVD = unit_test_features(task, settings.views)
    head_CD, scale = task.head_CD.to(unit_NVD), task.backbone.logit_scale
    modes_ND = torch.stack([find_mode(unit_VD, head_CD, scale, settings) for unit_VD in unit_NVD])
    logits_NC = (scale * modes_ND @ head_CD.double().T).float()
    return Adapted(task.text_head, fixed_NC=logits_NC.cpu())
