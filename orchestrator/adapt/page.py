"""The page of ``adapt``: what was chosen and why, what to expect of it, what it cost, and how to predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bolt.methods.common.candidates import parse_candidate
from orchestrator.report.page.rendering import render
from orchestrator.util.units import human_duration

if TYPE_CHECKING:
    from orchestrator.adapt.adaptation import Adaptation
    from orchestrator.adapt.trials import Trial


class Row(NamedTuple):
    """A candidate in the page's table; ``accuracy`` is ``None`` if it was not measured."""

    text: str
    title: str
    accuracy: float | None
    verdict: str
    seconds: str


def adapt_page(done: Adaptation) -> str:
    """The whole page as HTML. It needs no other file."""
    ranked = sorted(done.trials, key=lambda trial: -trial.accuracy if trial.correct_N is not None else 1.0)
    return render(
        "adapt.html.j2",
        done=done,
        name=done.request.folder.expanduser().absolute().name,
        rows=[_row(done, trial) for trial in ranked],
        classes=sorted(done.held_out_per_class, key=lambda row: row[1] / row[2]),
        images=sum(done.images.per_class),
        model=done.request.model.name,
        final_seconds=human_duration(done.final_seconds),
        trial_seconds=human_duration(sum(trial.seconds for trial in done.trials)),
    )


def _row(done: Adaptation, trial: Trial) -> Row:
    if trial is done.chosen:
        verdict = "chosen"
    elif trial.correct_N is None:
        verdict = f"not tried: {trial.left_out}" if trial.left_out else "not tried"
    else:
        verdict = "level" if trial in done.level else "behind"
    accuracy = trial.accuracy if trial.correct_N is not None else None
    seconds = human_duration(trial.seconds) if trial.seconds else ""
    return Row(trial.text, parse_candidate(trial.text).method.title, accuracy, verdict, seconds)
