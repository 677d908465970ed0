"""The outcome of ``adapt``: the model's method and accuracy, for the terminal, the page and the model card."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bolt.model.threshold import NOTE, held_out_note
from orchestrator.adapt.choice import Choice
from orchestrator.adapt.own_images import OwnImages
from orchestrator.adapt.request import Request
from orchestrator.adapt.suspects import SHOWN, Suspect, find_suspects
from orchestrator.adapt.trials import Trial
from orchestrator.artifacts.head import EqualClasses
from orchestrator.core.cell import MethodRef
from orchestrator.models.model_card import ModelCard
from orchestrator.store.results import Evaluation, Manifest
from orchestrator.util.interrupt import command_line
from orchestrator.util.units import human_duration, pluralize


@dataclass(frozen=True)
class Adaptation:
    """The outcome of one run of ``adapt``.

    Attributes:
        trials: the candidates, the most trusted first.
        choice: which candidate was taken.
        equal_classes: the classes that the text head cannot tell apart; ``None`` if there are none.
        evaluation: the score on the test images; ``None`` without test images.
        final_seconds: time to adapt the chosen candidate to all images.
        seconds: time of this run of the command.
    """

    request: Request
    images: OwnImages
    trials: Sequence[Trial]
    choice: Choice
    equal_classes: EqualClasses | None
    evaluation: Evaluation | None
    final_seconds: float
    seconds: float

    @property
    def chosen(self) -> Trial:
        """The candidate that was taken."""
        return self.trials[self.choice.best]

    @property
    def is_at_chance(self) -> bool:
        """Whether the accuracy to expect is known and not clearly better than chance."""
        return self.choice.low is not None and self.choice.low <= self.images.chance

    @property
    def chance_note(self) -> str:
        """The warning for a model that is not clearly better than chance."""
        return (
            f"This model is not clearly better than chance: naming the most frequent class is right for "
            f"{self.images.chance:.1f} %. More images, other words for the classes or another backbone may help"
        )

    @cached_property
    def suspects(self) -> Sequence[Suspect]:
        """Images whose label may be wrong, the most improbable label first; empty for a model at chance."""
        held_out = [trial.held_out for trial in self.trials if trial.held_out is not None]
        return find_suspects(held_out, self.images) if held_out and not self.is_at_chance else []

    @property
    def held_out_per_class(self) -> list[tuple[str, int, int]]:
        """For each class: its name, the number of correctly predicted held-out images, and the number of images.

        Empty if no image was held out.
        """
        if self.chosen.held_out is None:
            return []
        correct_N = self.chosen.held_out.correct_N
        raw = self.images.raw
        labels_N = raw.train.labels[self.chosen.held_out.positions_N]
        sizes = zip(raw.class_names, raw.class_sizes("train"), strict=True)
        return [(name, int(correct_N[labels_N == label].sum()), size) for label, (name, size) in enumerate(sizes)]

    @property
    def level(self) -> tuple[Trial, ...]:
        """The other candidates whose accuracy is not clearly lower than that of the chosen candidate."""
        return tuple(self.trials[number] for number in self.choice.level)


def summary_lines(done: Adaptation) -> list[str]:
    """Return the outcome in lines for the terminal."""
    request, choice = done.request, done.choice
    lines = [f"chosen: {done.chosen.text}"]
    if choice.expected is None:
        lines.append("  the accuracy cannot be estimated: a class has one picture only")
    else:
        lines.append(f"  expect {choice.expected:.1f} % on new images ({choice.low:.1f} to {choice.high:.1f})")
        if done.is_at_chance:
            lines.append(f"  warning: {done.chance_note}")
        if done.level:
            lines.append(f"  level with the best: {', '.join(trial.text for trial in done.level)}")
    if done.suspects:
        first = done.suspects[0]
        lines.append(f"  labels to check: {len(done.suspects)}; the page shows them. The first: {first.origin} "
                     f"({first.given}, or {first.likely}?)")  # fmt: skip
    if done.evaluation:
        low, high = done.evaluation.interval
        lines.append(f"  on the test images: {done.evaluation.accuracy:.1f} % ({low:.1f} to {high:.1f}); "
                     f"zero-shot {done.evaluation.accuracy_zero_shot:.1f} %")  # fmt: skip
    lines += [f"model: {request.model}", f"page: {request.page}", f"took {human_duration(done.seconds)}"]
    return lines


def adapt_page(done: Adaptation) -> str:
    """Return an HTML page, in one file, on the chosen method, the reasons, the accuracy to expect and the cost."""
    from orchestrator.report.page.rendering import render

    ranked = sorted(done.trials, key=lambda trial: -trial.accuracy if trial.held_out else 1.0)
    return render(
        "adapt.html.j2",
        done=done,
        name=done.request.folder.name,
        rows=[(trial, _verdict(done, trial)) for trial in ranked],
        classes=sorted(done.held_out_per_class, key=lambda row: row[1] / row[2]),
        images=done.images.total,
        shown=done.suspects[:SHOWN],
        model=done.request.model.name,
        trial_seconds=sum(trial.seconds for trial in done.trials),
        duration=human_duration,
        command=command_line(),
    )


def model_notes(done: Adaptation) -> dict[str, Any]:
    """Return facts on the origin of the model, as plain data. They are saved in the model's file."""
    cell, held_out, images = done.chosen.cell, done.chosen.held_out, done.images
    return {
        "method": done.chosen.text,
        "dataset": cell.dataset.name,
        "dataset_digest": cell.dataset.digest,
        "images": done.images.total,
        "chosen_among": [trial.text for trial in done.trials if trial.held_out],
        "expected_accuracy": done.choice.expected,
        "expected_interval": [done.choice.low, done.choice.high],
        "chance_accuracy": done.images.chance,
        "better_than_chance": not done.is_at_chance,
        "accuracy": done.evaluation.accuracy if done.evaluation else None,
        NOTE: held_out_note(*held_out.scores_without(images.repeated), sum(images.group_counts)) if held_out else None,
        "data_licence": done.images.entry.licence,
        "sources": {source.dataset: source.digest for source in cell.sources},
    }


def adapt_card(done: Adaptation, trainable_parameters: int, manifest: Manifest) -> ModelCard:
    """Return the model card, which names the chosen candidate as the method."""
    candidate, choice, size = done.chosen.candidate, done.choice, done.images.total
    method = MethodRef(
        candidate.method.name, candidate.method.version, candidate.method.identity_of(candidate.settings)
    )
    tried = pluralize(sum(trial.held_out is not None for trial in done.trials), "candidate")
    if choice.expected is None:
        notes = ["The accuracy on new images cannot be estimated: a class has one picture only."]
    else:
        notes = [
            f"Expect {choice.expected:.1f} % on new images of the same kind (95 % interval {choice.low:.1f} % to "
            f"{choice.high:.1f} %).",
            f"For this estimate, each of the {size:,} images was classified by a model that had not learned from it. "
            f"The method was chosen among {tried}. The best of several looks better than it is, so the estimated "
            "difference is subtracted.",
        ]
    if done.is_at_chance:
        notes.append(f"{done.chance_note}.")
    return ModelCard(
        name=done.request.model.name,
        cell=replace(done.chosen.cell, method=method, shots=0),  # without k: classes may differ in number of images
        evaluations=(done.evaluation,) if done.evaluation else (),
        notes=tuple(notes),
        support_size=size,
        trainable_parameters=trainable_parameters,
        manifest=manifest,
    )


def _verdict(done: Adaptation, trial: Trial) -> str:
    """Return the word for a candidate in the page's table: chosen, level, behind, or why it was not tried."""
    if trial is done.chosen:
        return "chosen"
    if not trial.held_out:
        return f"not tried: {trial.left_out}" if trial.left_out else "not tried"
    return "level" if trial in done.level else "behind"
