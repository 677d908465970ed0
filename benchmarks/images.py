"""Reading stored images, against a DataLoader that decodes them; labelling photographs, against the tower alone.

    python benchmarks/images.py [--images 256 --rounds 5 --width 4000]     # 1,000 drawn photographs by default

Reading photographs of 500 x 375 pixels:
    dataloader   torchvision's ImageFolder in a DataLoader with 2 workers, with open_clip's evaluation transform
    build        decoding the images once into a store, checksums and flushing to disk included
    read         reading normalised float32 batches from the store's memory map, as a tower gets them; the same bits

Labelling a quarter as many that are ``--width`` wide with a ``--model`` of random weights, and two threads:
    tower        the tower and the head alone, with pixels that are in memory
    predict      what ``predict`` does
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import open_clip
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

import bolt
from benchmarks.common import command, median_ratio, print_head, print_row, seconds
from bolt.clip.input_size import InputSize
from bolt.clip.preprocess import evaluation_pixels, normalise
from bolt.model.labels import BATCH as LABELLED_AT_ONCE
from bolt.model.labels import label_images
from bolt.seeds import numpy_generator
from orchestrator.datasets.images import Images, read_images, write_images
from orchestrator.datasets.part import file_part
from orchestrator.store import Store

WIDTH, HEIGHT, SIZE, BATCH, WORKERS = 500, 375, 224, 32, 2
MEAN, STD = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
ADDRESS, IDENTITY = "images/photographs--00000000", {"kind": "benchmark"}


def photograph(number: int) -> Image.Image:
    """Draw a picture with the spectrum of a photograph: an edge, and noise of every scale, the coarser the stronger."""
    dice = np.random.default_rng(number)
    total = np.zeros((HEIGHT, WIDTH, 3), dtype=np.float32)
    for cells in (4, 12, 36, 108, 500):
        noise = dice.integers(0, 256, (cells * 3 // 4, cells, 3), dtype=np.uint8)
        total += np.asarray(Image.fromarray(noise).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) / cells**0.2
    total[:, dice.integers(50, WIDTH - 50) :] *= 0.7
    total -= total.min()
    return Image.fromarray((total * (255 / total.max())).astype(np.uint8))


def photographs(folder: Path, count: int, width: int = WIDTH) -> list[Path]:
    """Write photographs. Larger ones are enlarged and have the noise of a camera."""
    noise = numpy_generator("labels").normal(0, 6, (width * 3 // 4, width, 1))
    paths = [folder / str(width) / f"{number:06}.jpg" for number in range(count)]
    paths[0].parent.mkdir(exist_ok=True)
    for number, path in enumerate(paths):
        image = photograph(number)
        if width != WIDTH:
            large = image.resize((width, width * 3 // 4), Image.Resampling.BICUBIC)
            image = Image.fromarray(np.clip(np.asarray(large) + noise, 0, 255).astype(np.uint8))
        image.save(path, quality=90)
    return paths


def batches(images: Images) -> Iterator[Tensor]:
    """Yield the input of a tower."""
    for start in range(0, len(images), BATCH):
        yield normalise(images.batch(start, min(start + BATCH, len(images))), MEAN, STD, "cpu")


def compare(title: str, images: int, rounds: int, ways: Mapping[str, Callable[[], object]]) -> None:
    """Print how long each way takes, and against the first way."""
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for way, work in ways.items():
            times[way].append(seconds(work))
    rival = next(iter(ways))
    print_head(f"{title}, {rounds} rounds, medians", ["seconds", "images a second", f"times {rival}"])
    for way, taken in times.items():
        ratio = median_ratio(taken, times[rival])
        print_row(way, [f"{median(taken):.2f}", f"{images / median(taken):,.1f}", f"{ratio:.3g}"])


def compare_reading(folder: Path, count: int, rounds: int) -> None:
    files = photographs(folder, count)
    part, stores = file_part(files, [0] * count, folder), iter(Store(folder / f"store{n}") for n in range(rounds))
    transform = open_clip.image_transform(SIZE, is_train=False, mean=MEAN, std=STD)
    loader = DataLoader(ImageFolder(folder, transform), batch_size=BATCH, num_workers=WORKERS)
    built = list[Images]()

    def build() -> None:
        with (store := next(stores)).building(ADDRESS, IDENTITY) as builder:
            write_images(part, partial(evaluation_pixels, size=InputSize(SIZE)), builder.folder)
        artifact = store.artifact(ADDRESS, IDENTITY)
        assert artifact is not None
        built.append(read_images(artifact.path))

    ways: dict[str, Callable[[], object]] = {
        "dataloader": lambda: list(map(len, loader)),
        "build": build,
        "read": lambda: list(map(len, batches(built[-1]))),
    }
    torch.set_num_threads(1)
    compare(f"reading {count:,} JPEGs", count, rounds, ways)
    assert torch.equal(next(batches(built[-1])), next(iter(loader))[0]), "the two ways differ"


def compare_labelling(folder: Path, architecture: str, count: int, width: int, rounds: int) -> None:
    torch.save(open_clip.create_model(architecture, pretrained=None).state_dict(), folder / "weights.pt")
    backbone = bolt.load_backbone(architecture, folder / "weights.pt", quick_gelu=False)
    paths, names = [str(path) for path in photographs(folder, count, width)], [f"class {n}" for n in range(4)]
    model = bolt.adapt(backbone, paths[:8], [0, 1, 2, 3] * 2, names, method="zero_shot")
    pixels = torch.randint(256, (count, 3, SIZE, SIZE), dtype=torch.uint8)
    torch.set_num_threads(2)
    ways: dict[str, Callable[[], object]] = {
        "tower": lambda: [model.logits(pixels[at : at + LABELLED_AT_ONCE]) for at in range(0, count, LABELLED_AT_ONCE)],
        "predict": lambda: list(label_images(model, paths)),
    }
    for work in ways.values():
        work()  # the first time is not counted, because it allocates memory
    compare(f"labelling {count} photographs", count, rounds, ways)


def main() -> None:
    parser = command(__doc__, images=1000, rounds=3, width=1600)
    parser.add_argument("--model", default="ViT-B-32", help="an architecture of open_clip; default: %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bolt-images-") as name:
        compare_reading(Path(name), arguments.images, arguments.rounds)
        compare_labelling(Path(name), arguments.model, arguments.images // 4, arguments.width, arguments.rounds)


if __name__ == "__main__":
    main()
