"""Imbalanced few-shot adaptation: k images per class on average, with the class frequencies of the training split.

In practice, some classes have more labelled images than others (Silva-Rodriguez et al., "Few-Shot, Now for Real",
MICCAI 2025, https://arxiv.org/abs/2506.17500). Methods are compared by balanced accuracy, the mean recall of the
classes, because a method that forgets the rare classes should not win.
"""

from orchestrator.tracks.base import Track

IMBALANCED = Track(
    name="imbalanced",
    title="imbalanced few-shot",
    method_track="fewshot",
    support_draw=lambda protocol: "imbalanced",
    published_shots=lambda shots: None,
    metric="balanced_accuracy",
)
