"""KgCoOp: CoOp, with class vectors that are held near the vectors of hand-made prompts (Yao et al., CVPR 2023).

Paper: arXiv:2303.13283. The context starts from the words "a photo of a" and is trained as in :mod:`bolt.methods.coop`,
by cross-entropy plus a distance to the frozen class vectors w_c of hand-made prompts::

    loss = CE(scale f t_c) + 8 (1 - mean_c cos(t_c, w_c))

That is the form of the official code. The paper's squared distance is twice as large, so a weight of 8 here is a lambda
of 4 in the paper. Without the penalty, learned prompts get worse on classes that they were not trained on. The
optimiser is SGD with rate 2e-3, for 100 epochs of batches of 128. No setting is chosen on labelled images outside the
support. What differs from the official code:

- The vectors w_c are the task's text head, a mean over its prompts. The official code has one hand-made prompt for each
  dataset.
- As in ``coop``: views are cached, the last batch of an epoch is kept, and numbers are float32.
"""

from dataclasses import dataclass

from bolt.methods.coop import CoOpSettings, learn_context, register_learned_context
from bolt.task.task import Adapted, Task
from bolt.util.ranges import NotNegative


@dataclass(frozen=True)
class KgCoOpSettings(CoOpSettings):
    """The context, the training recipe and the weight of the distance.

    Attributes:
        distance_weight: weight of the distance ``1 - mean cos`` to the class vectors of the hand-made prompts.
    """

    initial_words: str = "a photo of a"
    epochs: int | None = 100
    batch_size: int = 128
    distance_weight: NotNegative = 8.0


@register_learned_context(
    title="KgCoOp",
    palette=47,
    summary="learns the context words of the prompt, held near hand-made prompts",
    paper="https://arxiv.org/abs/2303.13283",
    support_feature_views=lambda settings: min(settings.views, settings.epochs or settings.views),
)
def adapt(task: Task, settings: KgCoOpSettings) -> Adapted:
    """Train the context on the frozen features of the support."""
    return learn_context(task, settings, settings.distance_weight)
