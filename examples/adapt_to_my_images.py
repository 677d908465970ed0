"""Adapt a CLIP to a few images with the ``bolt`` library only.

    python examples/adapt_to_my_images.py    # with drawn digits, half a minute
    python examples/adapt_to_my_images.py --images PHOTOS --checkpoints MODELS \\
        --architecture ViT-B-32 --weights openai

``PHOTOS`` has one folder of images per class. ``MODELS`` has image towers of the same CLIP, fine-tuned on other data,
in any layout of docs/checkpoints.md. By default, the script draws digits, and fine-tunes two source models on drawn
letters.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

import bolt

TINY = Path(__file__).resolve().parents[1] / "grids" / "backbones"
SIDE, SHOTS = 48, 8
PROMPTS = ["a picture of the digit {}.", "a photo of the digit {}."]


def adapt(
    backbone: bolt.Backbone, photos: Path, checkpoints: Path, out: Path, unseen: list[Image.Image], **options: Any
) -> list[str]:
    """Read images and source models, adapt, save, load and predict; return the labels of the unseen images."""
    sources = bolt.load_sources(checkpoints, backbone)
    images, labels, names = bolt.read_folder(photos)
    model = bolt.adapt(backbone, images, labels, names, method="bolt", sources=sources, **options)
    model.save(out)  # kilobytes; form="state_dict" or "huggingface" writes the whole tower
    loaded = bolt.load_model(out, backbone, sources)
    found = loaded.predict(unseen)
    for prediction in found[:4]:
        print(f"  {prediction.label}: {prediction.score:.0%}")
    return [prediction.label for prediction in found]


# -- drawn images and source models, used by default -------------------------------------------------------------

DIGITS = {"zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5"}
SOURCE_TASKS = {
    "capitals": {letter.lower(): letter for letter in "ABDEGHKR"},
    "small": {letter: letter for letter in "abdeghkr"},
}
"""The tasks of the source models; the tiny CLIP was pre-trained on these class names."""


def draw(characters: dict[str, str], count: int, key: str) -> tuple[list[Image.Image], list[int]]:
    """Return ``count`` drawings of each character, rotated and shifted on a light background with lines, and labels."""
    rng = random.Random(key)
    font = ImageFont.load_default(30)
    images, labels = [], []
    for label, character in enumerate(characters.values()):
        for _ in range(count):
            background = tuple(rng.randint(150, 255) for _ in range(3))
            image = Image.new("RGB", (SIDE, SIDE), background)
            for _ in range(4):
                ends = tuple(rng.randrange(SIDE) for _ in range(4))
                ImageDraw.Draw(image).line(ends, tuple(rng.randint(90, 255) for _ in range(3)), 2)
            position = tuple(SIDE // 2 + rng.randint(-5, 5) for _ in range(2))
            ImageDraw.Draw(image).text(position, character, "black", font, anchor="mm")
            images.append(image.rotate(rng.uniform(-45, 45), Image.Resampling.BICUBIC, fillcolor=background))
            labels.append(label)
    return images, labels


def draw_photos(folder: Path) -> None:
    """Write one folder of drawings per class."""
    images, labels = draw(DIGITS, SHOTS, "photos")
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        class_folder = folder / list(DIGITS)[label]
        class_folder.mkdir(parents=True, exist_ok=True)
        image.save(class_folder / f"{number}.png")


def make_checkpoints(folder: Path, backbone: bolt.Backbone) -> None:
    """Fine-tune the whole tower on each set of letters, and save it in the form of transformers, one folder each."""
    for name, characters in SOURCE_TASKS.items():
        images, labels = draw(characters, 20, name)
        model = bolt.adapt(
            backbone, images, labels, list(characters), method="full_finetune", name=name,
            prompts=["a picture of the letter {}."], mirror=False, learning_rate=5e-4, epochs=12,
        )  # fmt: skip
        model.save(folder / name, "huggingface")


def main(arguments: list[str] | None = None) -> float:
    """Run the example; return the accuracy (per cent) on new drawings, or NaN for your own images."""
    parser = argparse.ArgumentParser(description="Adapt a CLIP to a handful of images.")
    parser.add_argument("--images", type=Path, help="one folder of images per class; drawn by default")
    parser.add_argument("--checkpoints", type=Path, help="fine-tuned image towers; made by default")
    parser.add_argument("--architecture", default=str(TINY / "tiny-clip.json"))
    parser.add_argument("--weights", default=str(TINY / "tiny-clip.safetensors"))
    parser.add_argument("--quick-gelu", action=argparse.BooleanOptionalAction, default=False, help="OpenAI's weights")
    parser.add_argument("--out", type=Path, help="a new folder for the model")
    given = parser.parse_args(arguments)
    if given.out is not None and given.out.exists():  # checked before the training, because a model needs a new folder
        parser.error(f"argument --out: {given.out} is there already")
    torch.set_num_threads(1)  # several threads are slower with small tensors
    with tempfile.TemporaryDirectory() as temporary:
        backbone = bolt.load_backbone(given.architecture, given.weights, quick_gelu=given.quick_gelu)
        photos, checkpoints = (
            given.images or Path(temporary, "photos"),
            given.checkpoints or Path(temporary, "checkpoints"),
        )
        if given.images is None:
            draw_photos(photos)
        if given.checkpoints is None:
            make_checkpoints(checkpoints, backbone)
        out = given.out or Path(temporary, "model")
        if given.images is not None:
            adapt(backbone, photos, checkpoints, out, bolt.read_folder(photos)[0])
            return float("nan")
        unseen, labels = draw(DIGITS, 40, "unseen")
        expected = [list(DIGITS)[label] for label in labels]
        frozen = bolt.adapt(backbone, unseen, labels, list(DIGITS), method="zero_shot", prompts=PROMPTS)
        before = [prediction.label for prediction in frozen.predict(unseen)]
        # A mirrored 2 is no 2. With two small sources there are few coefficients, so the learning rate can be higher.
        options = {"prompts": PROMPTS, "mirror": False, "learning_rate": 1e-2}
        after = adapt(backbone, photos, checkpoints, out, unseen, **options)
    scores = [100 * sum(map(str.__eq__, found, expected)) / len(expected) for found in (before, after)]
    print(f"drawings not seen: {scores[0]:.1f} % zero-shot, {scores[1]:.1f} % adapted to {SHOTS} of each digit")
    return scores[1]


if __name__ == "__main__":
    main()
