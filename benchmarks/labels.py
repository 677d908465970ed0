"""Compare the images per second that ``predict`` labels, in the shapes of ViT-B/32, with those of the tower alone.

    python benchmarks/labels.py                      # 256 photographs of 1600 x 1200, two threads
    python benchmarks/labels.py --width 4000 --images 100

The pixels for the tower alone are in memory before the measurement, and its time includes the head. The weights are
random and the photographs are drawn, which does not change the time.
"""

import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import open_clip
import torch
from PIL import Image

import bolt
from benchmarks.common import command, median_ratio, seconds
from benchmarks.images import photograph
from bolt.model.labels import BATCH, label_images
from bolt.seeds import numpy_generator

CLASSES = 4


def photographs(folder: Path, count: int, width: int) -> list[str]:
    """Write drawn photographs that are enlarged and have the noise of a camera. Return their paths."""
    noise = numpy_generator("labels").normal(0, 6, (width * 3 // 4, width, 1))
    paths = [str(folder / f"{number:04}.jpg") for number in range(count)]
    for number, path in enumerate(paths):
        large = photograph(number).resize((width, width * 3 // 4), Image.Resampling.BICUBIC)
        Image.fromarray(np.clip(np.asarray(large) + noise, 0, 255).astype(np.uint8)).save(path, quality=90)
    return paths


def main() -> None:
    arguments = command(__doc__, images=256, width=1600, threads=2, rounds=3).parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as place:
        torch.save(open_clip.create_model("ViT-B-32", pretrained=None).state_dict(), Path(place, "weights.pt"))
        backbone = bolt.load_backbone("ViT-B-32", Path(place, "weights.pt"), quick_gelu=False)
        paths = photographs(Path(place), arguments.images, arguments.width)
        labels = [number % CLASSES for number in range(2 * CLASSES)]
        names = [f"class {number}" for number in range(CLASSES)]
        model = bolt.adapt(backbone, paths[: len(labels)], labels, names, method="zero_shot")
        pixels = torch.randint(256, (arguments.images, 3, 224, 224), dtype=torch.uint8)
        whole, limit = [], []
        for round_ in range(arguments.rounds + 1):
            own = seconds(lambda: list(label_images(model, paths)))
            least = seconds(lambda: list(map(model.logits, pixels.split(BATCH))))
            if round_:  # the first round is not counted, because it allocates memory
                whole.append(own)
                limit.append(least)
    rate, share = len(paths) / median(whole), 100 * median_ratio(limit, whole)
    print(f"{rate:.1f} images a second, {share:.0f} % of what the tower alone could label")


if __name__ == "__main__":
    main()
