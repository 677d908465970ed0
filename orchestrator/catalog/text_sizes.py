"""Sizes of a backbone's text tower, for plans: read from its open_clip model configuration, without importing it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.catalog.backbone_entry import BackboneEntry
from orchestrator.catalog.references import architecture_path

PROMPT_TOKENS = 24
"""Tokens that a prompt is assumed to have: 16 of context, a class name, and the start and end tokens."""


VOCABULARY = 49408
"""Tokens of CLIP's own vocabulary."""


@dataclass(frozen=True)
class TextSizes:
    """Sizes of a text tower, with the original ViT-B models' sizes as defaults.

    Attributes:
        context_length: most tokens that a prompt may have.
        width, layers: of its transformer.
    """

    context_length: int = 77
    width: int = 512
    layers: int = 12

    @property
    def gflops_per_prompt(self) -> float:
        """10^9 operations of one prompt's forward pass, a multiply-add counted as two."""
        tokens = min(PROMPT_TOKENS, self.context_length)
        return 2 * self.layers * tokens * (12 * self.width**2 + 2 * tokens * self.width) / 1e9

    @property
    def parameters(self) -> int:
        """About how many parameters the text tower has, its token embedding included."""
        return (VOCABULARY + self.context_length) * self.width + 12 * self.layers * self.width**2


def download_bytes(entry: BackboneEntry) -> int:
    """Return about how large the pre-trained weights of a backbone are: both towers, in float32."""
    return 4 * (entry.parameters + text_sizes(entry).parameters)


@cache
def text_sizes(entry: BackboneEntry) -> TextSizes:
    """Return the sizes of a backbone's text tower, or ViT-B's sizes if its configuration does not state them."""
    package = importlib.util.find_spec("open_clip")
    assert package is not None
    assert package.origin is not None
    configs = Path(package.origin).with_name("model_configs")
    file = architecture_path(entry) or configs / f"{entry.architecture}.json"
    try:
        text: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["text_cfg"]
    except (OSError, ValueError, KeyError):
        text = {}
    return TextSizes(**{field.name: int(text[field.name]) for field in fields(TextSizes) if field.name in text})
