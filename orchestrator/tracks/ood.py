"""Out-of-distribution generalisation: learn from k labelled images per class, score also on shifted test sets."""

from orchestrator.tracks.base import Track

OOD = Track(
    name="ood",
    title="out of distribution",
    support_split=lambda protocol: protocol.ood_support,
    scores_variants=True,
    averages_target=False,
    # The paper prints all results at k = 16, even for methods without a support, whose cells have k = 0.
    published_shots=lambda shots: 16 if shots == 0 else shots,
    lead_tables=("main", "shift"),
)
