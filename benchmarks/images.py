"""Reading a test split from stored decoded images, against decoding the images in a DataLoader in every pass.

    python benchmarks/images.py                 # 1,000 photographs of 500 x 375 pixels, drawn by the script
    python benchmarks/images.py --images 4000 --rounds 5

Compared, in one run, on the same files:
    dataloader   a plain torch DataLoader with 2 workers doing open_clip's evaluation transform
    build        decoding the images once into a store, checksums and flushing to disk included
    read         reading normalised float32 batches from the store's memory map, as a tower gets them

The script checks that both ways give the same bits.
"""

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import open_clip
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import command, median_ratio, seconds
from bolt.clip.input_size import InputSize
from bolt.clip.preprocess import evaluation_pixels, normalise
from orchestrator.datasets.images import Images, read_images, write_images
from orchestrator.datasets.part import Part, file_part
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


class Files(Dataset[Tensor]):
    """The usual dataset: open the file, transform it."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.transform = open_clip.image_transform(SIZE, is_train=False, mean=MEAN, std=STD)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.files[index]) as image:
            pixels: Tensor = self.transform(image)
        return pixels


def dataloader(files: list[Path]) -> DataLoader[Tensor]:
    return DataLoader(Files(files), batch_size=BATCH, num_workers=WORKERS)


def build(store: Store, part: Part) -> None:
    """Decode the split into the store, as the engine does."""
    with store.building(ADDRESS, IDENTITY) as builder:
        write_images(part, partial(evaluation_pixels, size=InputSize(SIZE)), builder.folder)


def batches(images: Images) -> Iterator[Tensor]:
    """Yield the input of a tower."""
    for start in range(0, len(images), BATCH):
        yield normalise(images.batch(start, min(start + BATCH, len(images))), MEAN, STD, "cpu")


def main() -> None:
    arguments = command(__doc__, images=1000, rounds=3).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bolt-images-") as name:
        folder, count = Path(name), arguments.images
        files = [folder / f"{number:06}.jpg" for number in range(count)]
        for number, file in enumerate(files):
            photograph(number).save(file, quality=90)
        part = file_part(files, [0] * count, folder)
        kilobytes = sum(file.stat().st_size for file in files) / count / 1000
        print(f"{count:,} JPEGs of {WIDTH} x {HEIGHT}, {kilobytes:.0f} kB each, to {SIZE} x {SIZE}; "
              f"{arguments.rounds} rounds, medians")  # fmt: skip

        times: dict[str, list[float]] = defaultdict(list)
        for round_ in range(arguments.rounds):
            store = Store(folder / f"store{round_}")
            times["dataloader"].append(seconds(lambda: list(map(len, dataloader(files)))))
            times["build"].append(seconds(partial(build, store, part)))
            artifact = store.artifact(ADDRESS, IDENTITY)
            assert artifact is not None
            images = read_images(artifact.path)
            times["read"].append(seconds(partial(list, map(len, batches(images)))))
        assert torch.equal(next(batches(images)), next(iter(dataloader(files)))), "the two ways differ"
    for what, taken in times.items():
        took, ratio = statistics.median(taken), median_ratio(taken, times["dataloader"])
        print(f"{what:12}{took:8.2f} s{count / took:10,.0f} images/s   {ratio:.3g} of the DataLoader's time")


if __name__ == "__main__":
    main()
