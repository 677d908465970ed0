"""ZERO: the most frequent class among the most certain views of an image (Farina et al., NeurIPS 2024).

Paper: arXiv:2405.18330. Of 64 views of a test image, the 30 per cent of lowest entropy vote for their most probable
class. At a tie, the other views vote in the order of their entropy. The first tied class that gets such a vote wins.
Nothing is trained, and no other image is read. What differs from the official code:

- Votes are counted. The official code sums probabilities at a temperature of machine epsilon. In half precision,
  epsilon is a tenth of CLIP's temperature, so the sum is not a number of votes.
- If no other view votes for a tied class, the tied class with the largest summed probability wins. The official code
  then takes a class that may not be tied, or fails.

Shape legend: N images, V views, C classes, D joint embedding width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.methods.base import register
from bolt.methods.common.frozen_features import entropies, unit_test_features
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast1, Checked, Share

_SMALLEST = 1e-6
"""The share that a class without a vote gets in place of zero, so that the logarithm of the share is finite."""


@dataclass(frozen=True)
class ZeroSettings(Checked):
    """How many views are read, and how many vote. The defaults are the official ones, the same for every dataset.

    Attributes:
        views: views of each image, the un-augmented one included.
        kept: share of the views that vote.
    """

    views: AtLeast1 = 64
    kept: Share = 0.3


def vote(logits_VC: Tensor, kept: float) -> Tensor:
    """Return the number of votes for each class, (C,).

    If several classes tie for the most votes, one of them gets an extra vote. The other views, in the order of their
    entropy, name this class: it is the first tied class among their choices. If they choose no tied class, it is the
    tied class with the largest summed probability.
    """
    order_V = entropies(logits_VC).argsort(stable=True)
    count = max(1, int(kept * len(order_V)))
    choices_V = logits_VC.argmax(dim=-1)[order_V]
    votes_C = choices_V[:count].bincount(minlength=logits_VC.shape[1])
    tied_C = votes_C == votes_C.max()
    if int(tied_C.sum()) > 1:
        deciding = [choice for choice in choices_V[count:].tolist() if tied_C[choice]]
        sums_C = logits_VC[order_V[:count]].softmax(dim=-1).sum(dim=0)
        votes_C[deciding[0] if deciding else int(torch.where(tied_C, sums_C, -1).argmax())] += 1
    return votes_C


@register(
    title="ZERO",
    palette=51,
    summary="lets the most certain views of an image vote",
    paper="https://arxiv.org/abs/2405.18330",
    tracks=frozenset({"tta_image"}),
    test_views=lambda settings: settings.views,
)
def adapt(task: Task, settings: ZeroSettings) -> Adapted:
    """Classify every test image of the task by its views.

    The returned classifier is the text head. It classifies images that come without views.
    """
    unit_NVD = unit_test_features(task, settings.views)
    head_CD, scale = task.head_CD.to(unit_NVD), task.backbone.logit_scale
    votes_NC = torch.stack([vote(scale * unit_VD @ head_CD.T, settings.kept) for unit_VD in unit_NVD]).float()
    shares_NC = votes_NC / votes_NC.sum(dim=-1, keepdim=True)
    return Adapted(task.text_head, fixed_NC=shares_NC.clamp_min(_SMALLEST).log().cpu())
