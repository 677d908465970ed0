"""Compare what ``adapt`` says about drawn pictures with the truth: the accuracy, and the labels that may be wrong.

    python benchmarks/promise.py                # 15 minutes on two cores
    python benchmarks/promise.py --targets 4

In each of 16 tasks, ``adapt`` learns from a few pictures per class. The accuracy on all other pictures of the task is
the truth, known to about 1.5 points. The promise holds if its 95 % interval contains the truth. With "copies", two of
five pictures occur up to four times: with the same pixels, or compressed, scaled, brightened and cropped.

With "wrong labels", every twentieth label is another class. If there are n wrong labels, recall is the share of them
that is among the first n suspects.

"labels at 80 %" and "at 95 %" say what ``predict --accuracy`` does with the other pictures. The command's promise holds
if the accuracy of the labelled pictures lies in the interval that it prints. ``--images`` is the least number of
pictures to learn from, and ``--draw 2`` draws other pictures.
"""

import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance
from rich.console import Console

import bolt
from benchmarks.common import command
from bolt.model.threshold import NoThreshold, choose_threshold
from bolt.seeds import numpy_generator
from orchestrator.adapt.adapt_folder import adapt_folder
from orchestrator.adapt.request import Request
from orchestrator.artifacts.spec import clear_artifact_caches
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import DatasetOptions
from orchestrator.drawn_world.drawing import draw_split
from orchestrator.drawn_world.tasks import TASKS

METHODS = ("tip_adapter", "gda", "zero_shot", "logistic_probe")
COPIED = ("exact copies", "near copies")
KINDS = ("no copies", *COPIED, "wrong labels")
LEAST_PER_CLASS, WRONG = 6, 0.05
ACCURACIES = (80, 95)


class Promise(NamedTuple):
    """A promised interval of an accuracy, the true accuracy, and the share of the images that are labelled, in %."""

    low: float
    high: float
    true: float
    share: float = 100.0

    @property
    def holds(self) -> bool:
        return self.low <= self.true <= self.high


class Run(NamedTuple):
    """The expected accuracy, the promises by name, the images with a wrong label, and the suspects in order."""

    expected: float
    promises: dict[str, Promise]
    wrong: set[str]
    suspects: list[str]

    def hits(self, most: int | None = None) -> int:
        """Return how many of the first ``most`` suspects have a wrong label. By default, ``most`` is ``len(wrong)``."""
        return len(self.wrong & set(self.suspects[: most or len(self.wrong)]))


def changed(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a near copy: compressed, and scaled, brightened or cropped."""
    side = image.width
    cut = int(rng.integers(0, 2))
    image = image.crop((cut, cut, side - int(rng.integers(0, 2)), side - int(rng.integers(0, 2))))
    size = int(rng.integers(side, 3 * side))
    image = ImageEnhance.Brightness(image.resize((size, size), Image.Resampling.BICUBIC)).enhance(rng.uniform(0.9, 1.1))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=int(rng.integers(75, 96)))
    return Image.open(stream)


def run(task: str, kind: str, draw: int, least: int, place: Path) -> Run:
    """Adapt to some pictures of a task, and predict the others."""
    rng, names = numpy_generator("promise", task, kind, draw), TASKS[task].class_names
    parts = [draw_split(task, "train"), draw_split(task, "test")]
    pictures, labels = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    per_class, wrong, learnt = max(LEAST_PER_CLASS, -(-least // len(names))), set[str](), []
    for label, name in enumerate(names):
        for number in rng.permutation(np.flatnonzero(labels == label))[:per_class]:
            given, learnt = name, [*learnt, number]
            if kind == "wrong labels" and rng.random() < WRONG:
                given = str(rng.choice([other for other in names if other != name]))
                wrong.add(f"{given}/{number}.png")
            (place / "images" / given).mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(pictures[number])
            image.save(place / "images" / given / f"{number}.png")
            copies = int(rng.integers(1, 4)) if kind in COPIED and rng.random() < 0.4 else 0
            for copy in range(copies):
                near = image if kind == "exact copies" else changed(image, rng)
                near.save(place / "images" / given / f"{number}-{copy}.png")
    clear_artifact_caches()
    settings, model = RunSettings(str(place / "runs"), device="cpu"), place / "model"
    request = Request(
        place / "images", "images", model, "tiny-clip", None, METHODS, 60.0, "state_dict", DatasetOptions(), settings
    )
    done = adapt_folder(request, Console(file=io.StringIO()))
    choice = done.choice
    assert isinstance(choice.expected, float), "every class has several pictures"
    rest = np.setdiff1d(np.arange(len(labels)), learnt)
    saved = bolt.load_model(model)
    found = saved.predict([Image.fromarray(pictures[number]) for number in rest])
    right = np.array([each.label == names[label] for each, label in zip(found, labels[rest], strict=True)])
    scores = np.array([each.score for each in found])
    promises = {"all": Promise(choice.low or 0.0, choice.high or 0.0, 100 * float(right.mean()))}
    for accuracy in ACCURACIES:
        with suppress(NoThreshold):
            threshold = choose_threshold(saved.about.notes, accuracy)
            sure = scores >= threshold.score
            if sure.any():
                interval = threshold.interval(int(sure.sum()))
                true, share = 100 * float(right[sure].mean()), 100 * float(sure.mean())
                promises[f"labels at {accuracy} %"] = Promise(*interval, true, share)
    return Run(choice.expected, promises, wrong, [suspect.origin for suspect in done.suspects])


def main() -> None:
    """Print a line for each run, and a sum for each kind."""
    parser = command(__doc__, targets=16, draw=1, images=100)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        runs = []
        for task in list(TASKS)[: arguments.targets]:
            with tempfile.TemporaryDirectory() as place:
                runs.append(run(task, kind, arguments.draw, arguments.images, Path(place)))
            print(f"{kind:<13} {task:<20} {_line(runs[-1])}", flush=True)
        for line in _sums(runs):
            print(f"{kind}: {line}")


def _line(of: Run) -> str:
    parts = [f"expects {of.expected:5.1f}"]
    for name, found in of.promises.items():
        parts.append(f"{name}: {found.share:.0f} %, {found.low:.1f} to {found.high:.1f}, true {found.true:.1f}")
    if of.wrong:
        parts.append(f"{of.hits()} wrong labels in the first {len(of.wrong)} of {len(of.suspects)} suspects")
    return "; ".join(parts)


def _sums(runs: Sequence[Run]) -> Iterator[str]:
    yield f"bias {np.mean([of.expected - of.promises['all'].true for of in runs]):+.1f} points"
    for name in dict.fromkeys(name for of in runs for name in of.promises):
        found = [of.promises[name] for of in runs if name in of.promises]
        within, (share, true) = sum(each.holds for each in found), np.mean([(o.share, o.true) for o in found], axis=0)
        yield f"{name}: {within} of {len(found)} hold, {share:.0f} % labelled, {true:.1f} % right"
    if planted := [of for of in runs if of.wrong]:
        recall = np.mean([of.hits() / len(of.wrong) for of in planted])
        precision = np.mean([of.hits(10**6) / max(1, len(of.suspects)) for of in planted])
        yield f"recall {recall:.2f}, precision of all listed {precision:.2f}"


if __name__ == "__main__":
    main()
