"""Few-shot adaptation: learn from k labelled images per class, score on the target's test split."""

from orchestrator.tracks.base import Track

FEWSHOT = Track(name="fewshot", title="few-shot", named_in_titles=False)
