"""What ``adapt`` promises, and what is true, on drawn pictures: accuracy, and labels that may be wrong.

    python benchmarks/promise.py                # 15 minutes on two cores
    python benchmarks/promise.py --targets 4

Each of 16 tasks gives a few pictures per class to learn from; all its others are the truth. "copies": two of five
pictures are there up to four times, with the same pixels, or compressed, scaled, brightened and cropped. The promise
holds if its 95 % interval contains the true accuracy, which is itself known to about 1.5 points.

"wrong labels": every twentieth label is another class. Recall is that of as many listed images as were planted.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance
from rich.console import Console

import bolt
from bolt.seeds import numpy_generator
from orchestrator.adapt.adapt_folder import adapt_folder
from orchestrator.adapt.adaptation import Adaptation
from orchestrator.adapt.request import Request
from orchestrator.artifacts.spec import clear_artifact_caches
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import DatasetOptions
from orchestrator.drawn_world.drawing import draw_split
from orchestrator.drawn_world.tasks import TASKS

METHODS = ("tip_adapter", "gda", "zero_shot", "logistic_probe")
COPIED = ("exact copies", "near copies")
KINDS = ("no copies", *COPIED, "wrong labels")
LEAST_IMAGES, LEAST_PER_CLASS, WRONG = 100, 6, 0.05


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


def run(task: str, kind: str, place: Path) -> tuple[Adaptation, float, set[str]]:
    """Adapt to some pictures of a task; return what came out, the true accuracy, and the images with a wrong label."""
    rng, names = numpy_generator("promise", task, kind), TASKS[task].class_names
    parts = [draw_split(task, "train"), draw_split(task, "test")]
    pictures, labels = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    per_class, wrong, learnt = max(LEAST_PER_CLASS, -(-LEAST_IMAGES // len(names))), set[str](), []
    for label, name in enumerate(names):
        for number in np.flatnonzero(labels == label)[:per_class]:
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
    rest = np.setdiff1d(np.arange(len(labels)), learnt)
    found = bolt.load_model(model).predict([Image.fromarray(pictures[number]) for number in rest])
    right = [each.label == names[label] for each, label in zip(found, labels[rest], strict=True)]
    return done, 100 * float(np.mean(right)), wrong


def main() -> None:
    """Print a line for each run, and a sum for each kind."""
    parser = argparse.ArgumentParser(description="Compare what adapt promises with the truth.")
    parser.add_argument("--targets", type=int, default=16)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        held, bias, recalls, precisions = [], [], [], []
        for task in list(TASKS)[: arguments.targets]:
            with tempfile.TemporaryDirectory() as place:
                done, truth, wrong = run(task, kind, Path(place))
            expected, low, high = done.choice.expected or 0.0, done.choice.low or 0.0, done.choice.high or 0.0
            line = f"{kind:<13} {task:<20} expects {expected:5.1f} ({low:5.1f} to {high:5.1f}), true {truth:5.1f}"
            held.append(low <= truth <= high)
            bias.append(expected - truth)
            if wrong:
                listed = [suspect.origin for suspect in done.suspects]
                hits = len(wrong & set(listed[: len(wrong)]))
                recalls.append(hits / len(wrong))
                precisions.append(len(wrong & set(listed)) / max(1, len(listed)))
                line += f"; {hits} of {len(wrong)} wrong labels in as many, {len(listed)} listed"
            print(line, flush=True)
        print(f"{kind}: the interval holds the truth in {sum(held)} of {len(held)}, bias {np.mean(bias):+.1f} points")
        if recalls:
            print(f"{kind}: recall {np.mean(recalls):.2f}, precision of all listed {np.mean(precisions):.2f}")


if __name__ == "__main__":
    main()
