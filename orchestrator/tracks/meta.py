"""Meta-learned start: few-shot adaptation, scored after every epoch to compare how fast different starts adapt."""

from orchestrator.tracks.base import Track

META = Track(name="meta", title="meta-learned start", scored_after_epochs=True, lead_tables=("main", "epochs"))
