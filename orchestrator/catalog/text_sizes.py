"""Sizes of a backbone's text tower, for plans. They are read from open_clip's files without importing open_clip."""

import importlib.util
import json
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.catalog.backbone_entry import BackboneEntry

PROMPT_TOKENS = 24
"""Assumed number of tokens of a prompt: 16 of context, a class name, and the start and end tokens."""

VOCABULARY = 49408
"""Number of tokens in CLIP's vocabulary."""


@dataclass(frozen=True)
class TextSizes:
    """Sizes of a text tower. The defaults are those of the original ViT-B models.

    Attributes:
        context_length: largest number of tokens that a prompt may have.
        width, layers: width and number of layers of the transformer.
    """

    context_length: int = 77
    width: int = 512
    layers: int = 12

    @property
    def gflops_per_prompt(self) -> float:
        """Floating-point operations of one prompt's forward pass, in units of 10^9. A multiply-add counts as two."""
        tokens = min(PROMPT_TOKENS, self.context_length)
        return 2 * self.layers * tokens * (12 * self.width**2 + 2 * tokens * self.width) / 1e9

    @property
    def parameters(self) -> int:
        """Approximate number of parameters of the text tower, token embedding included."""
        return (VOCABULARY + self.context_length) * self.width + 12 * self.layers * self.width**2


def download_bytes(entry: BackboneEntry) -> int:
    """Return the approximate size in bytes of a backbone's pre-trained weights: both towers, in float32."""
    return 4 * (entry.parameters + text_sizes(entry).parameters)


@cache
def text_sizes(entry: BackboneEntry) -> TextSizes:
    """Return the sizes of a backbone's text tower. Sizes that its configuration lacks are those of ViT-B."""
    package = importlib.util.find_spec("open_clip")
    assert package is not None
    assert package.origin is not None
    configs = Path(package.origin).with_name("model_configs")
    file = entry.architecture_path or configs / f"{entry.architecture}.json"
    text: dict[str, Any] = {}
    with suppress(OSError, ValueError, KeyError):
        text = json.loads(file.read_text(encoding="utf-8"))["text_cfg"]
    return TextSizes(**{field.name: int(text[field.name]) for field in fields(TextSizes) if field.name in text})
