"""Meta-learned start: few-shot adaptation that is scored after every epoch, to show how fast a start adapts."""

from orchestrator.tracks.base import Track

META = Track(name="meta", title="meta-learned start", scored_after_epochs=True, lead_tables=("main", "epochs"))
