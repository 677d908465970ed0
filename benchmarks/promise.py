"""Compare what ``adapt`` says about drawn pictures with the truth: the accuracy, and the labels that may be wrong.

    python benchmarks/promise.py                # 15 minutes on two cores
    python benchmarks/promise.py --targets 4

In each of 16 tasks, ``adapt`` learns from a few pictures per class. The truth is the accuracy on all other pictures of
the task. The promise holds if its 95 % interval contains the truth; "bias" is the expected accuracy minus the truth.
With "copies", two of five pictures occur up to four times: the same, or compressed, scaled, brightened and cropped.

With "wrong labels", every twentieth label is another class. If there are n wrong labels, "recall" is the share of them
that is among the first n suspects. "precision" is the share of all suspects that have a wrong label.

"labels at 80 %" and "at 95 %" say what ``predict --accuracy`` does with the other pictures. The command's promise holds
if the accuracy of the labelled pictures lies in the interval that it prints. ``--images`` is the least number of
pictures to learn from, and ``--draw 2`` draws other pictures.
"""

import io
import tempfile
from contextlib import suppress
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageEnhance
from rich.console import Console

import bolt
from benchmarks.common import command
from bolt.model.threshold import NoThreshold, choose_threshold
from bolt.seeds import numpy_generator
from orchestrator.adapt.adapt_folder import adapt_folder
from orchestrator.adapt.request import read_request
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


def run(task: str, kind: str, draw: int, least: int, place: Path) -> pd.DataFrame:
    """Adapt to some pictures of a task, and predict the others; return a row for each promise, in per cent."""
    rng, names = numpy_generator("promise", task, kind, draw), TASKS[task].class_names
    parts = [draw_split(task, "train"), draw_split(task, "test")]
    pictures, labels = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    per_class, wrong, learnt = max(LEAST_PER_CLASS, -(-least // len(names))), set[str](), list[int]()
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
                near.save(place / "images" / given / f"{number}-{'abc'[copy]}.png")
    clear_artifact_caches()
    settings, model = RunSettings(str(place / "runs"), device="cpu"), place / "model"
    folder, options, console = place / "images", DatasetOptions(), Console(file=io.StringIO())
    request = read_request(folder, model, "tiny-clip", None, METHODS, 60.0, "state_dict", options, settings, console)
    done = adapt_folder(request, console)
    choice = done.choice
    assert isinstance(choice.expected, float), "every class has several pictures"
    rest = np.setdiff1d(np.arange(len(labels)), learnt)
    saved = bolt.load_model(model)
    found = saved.predict([Image.fromarray(pictures[number]) for number in rest])
    right = np.array([each.label == names[label] for each, label in zip(found, labels[rest], strict=True)])
    scores = np.array([each.score for each in found])
    true = 100 * float(right.mean())
    row: dict[str, object] = {"promise": "accuracy", "labelled": 100.0, "low": choice.low, "high": choice.high}
    rows = [row | {"true": true, "bias": choice.expected - true}]
    if wrong:
        suspects = [suspect.origin for suspect in done.suspects]
        hits, of_all = (len(wrong & set(found)) for found in (suspects[: len(wrong)], suspects))
        rows[0] |= {"recall": 100 * hits / len(wrong), "precision": 100 * of_all / max(1, len(suspects))}
    for accuracy in ACCURACIES:
        with suppress(NoThreshold):
            threshold = choose_threshold(saved.about.notes, accuracy)
            if (sure := scores >= threshold.score).any():
                low, high = threshold.interval(int(sure.sum()))
                row = {"promise": f"labels at {accuracy} %", "labelled": 100 * sure.mean(), "low": low, "high": high}
                rows.append(row | {"true": 100 * float(right[sure].mean())})
    return pd.DataFrame(rows).assign(kind=kind, task=task)


def main() -> None:
    """Print a line for each promise, and the sums of each kind."""
    parser = command(__doc__, targets=16, draw=1, images=100)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    runs = []
    for kind, task in product(arguments.kinds, list(TASKS)[: arguments.targets]):
        with tempfile.TemporaryDirectory() as place:
            runs.append(run(task, kind, arguments.draw, arguments.images, Path(place)))
        print(runs[-1].to_string(index=False, float_format="%.1f"), flush=True)
    rows = pd.concat(runs)
    rows["holds"] = rows.true.between(rows.low, rows.high)
    groups = rows.groupby(["kind", "promise"], sort=False)
    means = groups[["labelled", "true", *rows.columns.intersection(["bias", "recall", "precision"])]].mean()
    print(groups.holds.agg(["sum", "size"]).join(means).to_string(float_format="%.1f"))


if __name__ == "__main__":
    main()
