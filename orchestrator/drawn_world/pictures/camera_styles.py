"""Camera styles: image transforms that make a whole domain differ from the pre-training set.

Pictures are float32 (n, 3, 32, 32) in [0, 1]. The styles ``sketch``, ``poster`` and ``cloudy`` are for variants of a
task, on which models are only evaluated.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.drawn_world.pictures.canvas import SIDE, clouds, grid, paint, tint
from orchestrator.drawn_world.pictures.keyed_random import KeyedRandom


def photocopy(rng: KeyedRandom, image: Tensor, strength: float) -> Tensor:
    """Copy images on a worn photocopier: soft focus, line screen, lost contrast, the lid's shadow, toner specks."""
    n = len(image)
    x, y = grid()
    soft = functional.avg_pool2d(functional.pad(image, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    image = image + 0.6 * strength * (soft - image)
    angle = 0.6 + rng.uniform(-0.08, 0.08, n, 1, 1)
    phase = rng.uniform(0.0, 2.0 * math.pi, n, 1, 1)
    pitch = 2.0 * math.pi * rng.uniform(6.5, 7.5, n, 1, 1) / 2.0
    screen = torch.sin(pitch * (torch.cos(angle) * x + torch.sin(angle) * y) + phase)
    image = 0.5 + (1.0 - 0.45 * strength) * (image - 0.5) + (0.22 * strength * screen)[:, None]
    lid = (1.0 - strength * rng.uniform(0.3, 0.7, n, 1, 1) * ((x + y) / 2.0).clamp(min=0.0) ** 1.0)[:, None]
    specks = (rng.uniform(0.0, 1.0, n, SIDE, SIDE) < 0.05 * strength).float()[:, None]
    image = image * lid
    return (image + specks * (0.08 - image)).clamp(0.0, 1.0)


def haze(rng: KeyedRandom, image: Tensor, strength: float) -> Tensor:
    """Show images as a cheap aerial camera does: a bluish veil, bleeding colours, stripes along the flight track."""
    n = len(image)
    bleed = torch.tensor([[0.45, 0.40, 0.15], [0.15, 0.45, 0.40], [0.45, 0.10, 0.45]])
    mixed = torch.einsum("ij,njhw->nihw", bleed, image)
    image = image + strength * (mixed - image)
    veil = (strength * (0.40 + 0.12 * clouds(rng, n, 3))).clamp(0.0, 0.75)
    air = torch.tensor([0.62, 0.70, 0.86])[:, None, None] * rng.uniform(0.85, 1.1, n, 1, 1, 1)
    image = image + veil * (air - image)
    bands = rng.normal(n, 1, SIDE, 1) * 0.07 * strength
    return (image + bands + 0.03 * strength * rng.normal(n, 3, SIDE, SIDE)).clamp(0.0, 1.0)


def infrared(image: Tensor) -> Tensor:
    """Show images in false colours, with vegetation in bright red.

    The red channel shows near infrared, which is estimated from the colours. The green channel shows red, and the blue
    channel shows green.
    """
    red, green, blue = image.unbind(1)
    near = (1.9 * green - 0.6 * red - 0.5 * blue + 0.25).clamp(0.0, 1.0)
    return torch.stack([near, red, green], dim=1)


def grey(image: Tensor) -> Tensor:
    """Make images grey: three equal channels."""
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    return (image * weights).sum(1, keepdim=True).expand_as(image)


def coarse(image: Tensor, side: int) -> Tensor:
    """Blur images to the resolution of a sensor that is ``side`` pixels wide."""
    small = functional.interpolate(image, size=(side, side), mode="area")
    return functional.interpolate(small, size=image.shape[-2:], mode="bilinear", align_corners=False)


def sketch(rng: KeyedRandom, image: Tensor) -> Tensor:
    """Draw images in pencil on paper: lines where the brightness changes, and a light tone on dark areas."""
    light = grey(image)[:, :1]
    soft = functional.avg_pool2d(functional.pad(light, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    around = functional.pad(soft, (1, 1, 1, 1), mode="replicate")
    across = around[:, :, 1:-1, 2:] - around[:, :, 1:-1, :-2]
    down = around[:, :, 2:, 1:-1] - around[:, :, :-2, 1:-1]
    lines = (3.0 * torch.sqrt(across**2 + down**2)).clamp(max=1.0)
    tone = (lines + 0.5 * (1.0 - light)).clamp(max=1.0)
    n = len(image)
    return paint(tint(rng, n, (0.95, 0.94, 0.90)), tone[:, 0], tint(rng, n, (0.12, 0.12, 0.16)))


def poster(rng: KeyedRandom, image: Tensor) -> Tensor:
    """Reduce each colour channel of the images to four levels, and permute the channels at random."""
    tones = (4.0 * image).floor().clamp(max=3.0) / 3.0
    exchanges = torch.tensor([(1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
    exchange = exchanges[rng.pick(len(exchanges), len(image))]
    return tones.gather(1, exchange[:, :, None, None].expand_as(tones))


def cloudy(rng: KeyedRandom, image: Tensor) -> Tensor:
    """Cover images with scattered clouds and their shadows."""
    n = len(image)
    cloud = (2.5 * (clouds(rng, n, 4)[:, 0] - 0.6)).clamp(0.0, 1.0)
    shadow = torch.roll(cloud, (4, 4), dims=(1, 2))
    return paint(image * (1.0 - 0.5 * shadow)[:, None], 0.95 * cloud, tint(rng, n, (0.95, 0.96, 0.98)))
