"""What a catalog file may say of backbones."""

from __future__ import annotations

from typing import Literal

from pydantic import StrictBool, model_validator

from orchestrator.catalog.fields import Count, Name, Number, StrictModel, Title


class Weights(StrictModel):
    """Where a backbone's weights come from: a file, or a tag open_clip knows."""

    file: str | None = None
    pretrained: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Weights:
        if (self.file is None) == (self.pretrained is None):
            raise ValueError("needs either 'file' or 'pretrained'")
        return self


QUICK_GELU_TAGS = frozenset({"openai"})
"""Tags of which no import is needed to know the activation; open_clip's own table is asked when weights are loaded."""


class BackboneEntry(StrictModel):
    """One CLIP.

    Attributes:
        name: its key.
        title: as printed in tables.
        architecture: an open_clip model name, or the path of a model-config json relative to ``grids/``.
        weights: a file (relative to ``grids/``, or absolute) or a pre-trained tag of open_clip.
        quick_gelu: whether the towers use QuickGELU; weights made with the one activation are wrong under the other.
        image_size: side of the square input.
        embed_dim: width of the joint embedding.
        width, layers, patch: shape of the image tower.
        gflops_per_image: 10^9 floating-point operations of one forward pass, a multiply-add counted as two.
        parameters: of the image tower.
        precision: number format of its arithmetic.
        published_as: its name in the paper's tables.
    """

    name: Name
    title: Title
    architecture: str
    weights: Weights
    quick_gelu: StrictBool
    image_size: Count
    embed_dim: Count
    width: Count
    layers: Count
    patch: Count
    gflops_per_image: Number
    parameters: Count
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    published_as: str | None = None

    @model_validator(mode="after")
    def _activation(self) -> BackboneEntry:
        if self.weights.pretrained in QUICK_GELU_TAGS and not self.quick_gelu:
            raise ValueError(
                f"the weights {self.weights.pretrained} were trained with QuickGELU and lose points without a word "
                "under plain GELU: write quick_gelu: true (the protocol's switch 'activation' swaps it on purpose)"
            )
        return self
