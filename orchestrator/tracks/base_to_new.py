"""Base to new: adapt to the first half of the classes, score on the first half, the second half and all classes.

Zhou et al., "Conditional prompt learning for vision-language models" (CVPR 2022, https://arxiv.org/abs/2203.05557).
The first ceil(C / 2) classes in label order are the base classes. A method gets images and text embeddings of the base
classes only. Afterwards it has to classify the new classes by their names.
"""

from orchestrator.tracks.base import GroupMean, Track

BASE_CLASSES, NEW_CLASSES = "base classes", "new classes"
"""Names under which a result stores the accuracies of the two groups of classes."""
HARMONIC_MEAN = "harmonic mean"
"""Name under which tables show the harmonic mean of both groups' accuracies."""


def harmonic_mean(base: float, new: float) -> float:
    """Return the harmonic mean of two accuracies; 0 if both are 0."""
    return 2 * base * new / (base + new) if base + new else 0.0


BASE_TO_NEW = Track(
    name="base_to_new",
    title="base to new classes",
    method_track="fewshot",
    base_classes=lambda whole: (whole + 1) // 2,
    class_groups=(BASE_CLASSES, NEW_CLASSES),
    group_mean=GroupMean(HARMONIC_MEAN, harmonic_mean),
    published_shots=lambda shots: None,
    lead_tables=("base_to_new",),
)
