"""What the user asked ``adapt`` for, and what came out of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bolt.model.saving import Form
from orchestrator.adapt.choice import Choice
from orchestrator.adapt.own_images import Options, OwnImages
from orchestrator.adapt.trials import Trial
from orchestrator.core.intervals import wilson_interval
from orchestrator.core.text_limit import TextLimit
from orchestrator.store.results import Evaluation
from orchestrator.util.units import human_duration


@dataclass(frozen=True)
class Request:
    """What the user asked for; see the options of the command.

    Attributes:
        folder: the images.
        work: the working folder.
        model: the folder of the model, which must not exist; the page is beside it, with the suffix ``.html``.
        sources: a domain of the catalog, or a folder of checkpoints; ``None`` for no sources.
        methods: the candidates as text; the default ones if empty.
    """

    folder: Path
    work: Path
    model: Path
    backbone: str
    sources: str | None
    methods: tuple[str, ...]
    minutes: float
    form: Form
    images: Options
    catalog_files: tuple[Path, ...]
    data_root: Path | None
    store_url: str
    threads: int
    device: str | None
    command: str

    @property
    def page(self) -> Path:
        """The file of the page."""
        return self.model.with_name(self.model.name + ".html")


@dataclass(frozen=True)
class Adaptation:
    """What came out, for the terminal and the page.

    Attributes:
        trials: the candidates, in the order of trust.
        choice: which one was taken.
        text_limit: the distinct class vectors of the text head, and the highest accuracy that they allow on images like
            the training images.
        evaluation: the score on the test images; ``None`` without any.
        held_out_per_class: class, images that the chosen candidate predicted correctly while held out, and all images.
        final_seconds, seconds: of adapting to all images, and of the whole command this time.
    """

    request: Request
    images: OwnImages
    trials: tuple[Trial, ...]
    folds: int
    choice: Choice
    text_limit: TextLimit
    evaluation: Evaluation | None
    held_out_per_class: tuple[tuple[str, int, int], ...]
    final_seconds: float
    seconds: float

    @property
    def chosen(self) -> Trial:
        """The candidate that was taken."""
        return self.trials[self.choice.best]

    @property
    def level(self) -> tuple[Trial, ...]:
        """The candidates that are not distinguishable from it."""
        return tuple(self.trials[number] for number in self.choice.level)

    @property
    def test_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the accuracy on the test images, per cent; ``None`` without any."""
        if self.evaluation is None:
            return None
        low, high = wilson_interval(self.evaluation.correct / self.evaluation.total, self.evaluation.total)
        return 100 * low, 100 * high


def summary_lines(done: Adaptation) -> list[str]:
    """What came out, for the terminal."""
    request, choice = done.request, done.choice
    lines = [f"chosen: {done.chosen.text}"]
    if choice.expected is None:
        lines.append("  the accuracy cannot be estimated: a class has one image")
    else:
        lines.append(f"  expect {choice.expected:.1f} % on new images ({choice.low:.1f} to {choice.high:.1f})")
        if done.level:
            lines.append(f"  level with it: {', '.join(trial.text for trial in done.level)}")
    if done.evaluation and done.test_interval:
        low, high = done.test_interval
        lines.append(f"  on the test images: {done.evaluation.accuracy:.1f} % ({low:.1f} to {high:.1f}); "
                     f"zero-shot {done.evaluation.accuracy_zero_shot:.1f} %")  # fmt: skip
    lines.append(f"model: {_shown(request.model)}")
    lines.append(f"page: {_shown(request.page)}")
    lines.append(f"took {human_duration(done.seconds)}")
    return lines


def _shown(path: Path) -> Path:
    """The path as a user would type it: relative if it is below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
