"""How many images a second ``predict`` labels with the shapes of ViT-B/32, and where the time goes.

    python benchmarks/labels.py                      # 256 photographs of 1600 x 1200, two threads
    python benchmarks/labels.py --width 4000 --images 100

The weights are random and the photographs are drawn, which does not change the time. "In the tower" is the time in
which the tower and the head run. Meanwhile other threads decode photographs, and where they compete for the cores, the
tower's time grows.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import open_clip
import torch
from PIL import Image

import bolt
from bolt.model.labels import label_images
from bolt.model.model import Model
from bolt.seeds import numpy_generator
from orchestrator.drawn_world.drawing import draw_split

CLASSES = 4


def photographs(folder: Path, count: int, width: int) -> list[str]:
    """Write drawn scenes, enlarged and with the noise of a camera; return their paths."""
    pictures, _ = draw_split("aerial-land", "train")
    noise = numpy_generator("labels").normal(0, 6, (width * 3 // 4, width, 1))
    paths = [folder / f"{number:04}.jpg" for number in range(count)]
    for path, pixels in zip(paths, pictures, strict=False):
        large = Image.fromarray(pixels).resize((width, width * 3 // 4), Image.Resampling.BICUBIC)
        Image.fromarray(np.clip(np.asarray(large) + noise, 0, 255).astype(np.uint8)).save(path, quality=90)
    return [str(path) for path in paths]


def main() -> None:
    """Print images a second and the share of the time in the tower."""
    parser = argparse.ArgumentParser(description="Time predict.")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--width", type=int, default=1600)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as place:
        torch.save(open_clip.create_model("ViT-B-32", pretrained=None).state_dict(), Path(place, "weights.pt"))
        backbone = bolt.load_backbone("ViT-B-32", Path(place, "weights.pt"), quick_gelu=False)
        paths = photographs(Path(place), arguments.images, arguments.width)
        labels = [number % CLASSES for number in range(2 * CLASSES)]
        names = [f"class {number}" for number in range(CLASSES)]
        model = bolt.adapt(backbone, paths[: len(labels)], labels, names, method="zero_shot")
        list(label_images(model, paths[:64]))  # the first batch allocates memory
        spent, run = 0.0, Model.logits

        def timed(self: Model, pixels: torch.Tensor) -> torch.Tensor:
            nonlocal spent
            started = time.perf_counter()
            found = run(self, pixels)
            spent += time.perf_counter() - started
            return found

        Model.logits = timed  # type: ignore[method-assign]
        started = time.perf_counter()
        list(label_images(model, paths))
        seconds = time.perf_counter() - started
    print(f"{len(paths) / seconds:.1f} images a second, {100 * spent / seconds:.0f} % of the time in the tower")


if __name__ == "__main__":
    main()
