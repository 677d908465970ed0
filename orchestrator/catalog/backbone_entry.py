"""The fields of a backbone and of an adopted checkpoint in a catalog file, and which of their files are missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, model_validator

from bolt.clip.checkpoint_files import UnreadableCheckpoint, checkpoint_files
from bolt.clip.input_size import LARGEST_NORM, InputSize, Interpolation, Resize
from orchestrator.catalog.location import display_path, grids_folder
from orchestrator.catalog.validation import Key, NonNegativeInt, PositiveInt, PositiveNumber, StrictModel, Title
from orchestrator.util.errors import UserError

Mean = Annotated[float, Field(gt=-LARGEST_NORM, lt=LARGEST_NORM)]
Std = Annotated[float, Field(gt=0, lt=LARGEST_NORM)]


class Weights(StrictModel):
    """The origin of a backbone's weights: a file, a file in a repository of the hub, or a tag of open_clip.

    Attributes:
        file: path relative to ``grids/``, or absolute; with ``hub``, the path in the repository.
        hub: the repository, OWNER/NAME.
        pretrained: open_clip's tag for the weights.
        by_hand: how a person gets a file that no program fetches.
    """

    file: str | None = None
    hub: Annotated[str, Field(pattern=r"[\w.-]+/[\w.-]+")] | None = None
    pretrained: str | None = None
    by_hand: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Weights:
        if (self.file is None) == (self.pretrained is None):
            raise ValueError("needs either 'file' or 'pretrained'")
        if self.hub is not None and self.file is None:
            raise ValueError("'hub' needs 'file', the path of the weights in the repository")
        return self

    @property
    def is_fetched(self) -> bool:
        """Whether ``grid`` and ``adapt`` download the weights if they are not on this machine."""
        return self.pretrained is not None or self.hub is not None

    @property
    def path(self) -> Path | None:
        """The path of the weights file; ``None`` for a tag of open_clip.

        For a file of the hub, it is the path in the hub's cache, at the revision that was fetched last.
        """
        if self.hub and self.file:
            from huggingface_hub import constants

            folder = Path(constants.HF_HUB_CACHE, f"models--{self.hub.replace('/', '--')}")
            revision = folder / "refs" / "main"
            commit = revision.read_text(encoding="utf-8").strip() if revision.is_file() else "main"
            return folder / "snapshots" / commit / self.file
        return None if self.file is None else grids_folder() / os.path.expanduser(self.file)


QUICK_GELU_TAGS = frozenset({"openai"})
"""Tags of weights that were trained with QuickGELU. With this list, a catalog entry is checked without importing
open_clip. When the weights are loaded, the entry is compared with open_clip's own table."""


class BackboneEntry(StrictModel):
    """One CLIP.

    Attributes:
        name: the key of the entry.
        title: the name printed in tables.
        architecture: an open_clip model name, or the path of a model-config json relative to ``grids/``.
        weights: the origin of the weights.
        quick_gelu: whether the towers use QuickGELU. Weights trained with one activation are wrong with the other.
        image_size: side of the square input in pixels.
        resize, interpolation: how an image is brought to this size, see :class:`bolt.clip.input_size.InputSize`.
        embed_dim: width of the joint embedding.
        width, layers, patch: shape of the image tower; the patch side is in pixels. They are 0 for a tower whose weight
            matrices have no names in this project, such as a ResNet. Methods that read or train matrices refuse such a
            tower.
        timm: whether the tower is timm's vision transformer (SigLIP, PE-Core, EVA-02), whose tensors have timm's names.
        trainable_text: whether the text side is a causal transformer of open_clip, which methods can differentiate.
        mean, std: normalisation per channel, for pixels in [0, 1]; left out if the model states them.
        gflops_per_image: number of floating-point operations of one forward pass, in units of 10^9. A multiply-add
            counts as two.
        parameters: number of parameters of the image tower.
        precision: number format of the weights, which are loaded as float32. A grid's ``precision`` is the number
            format of the arithmetic.
        published_as: the backbone's name in the paper's tables.
    """

    name: Key
    title: Title
    architecture: str
    weights: Weights
    quick_gelu: StrictBool
    image_size: PositiveInt
    resize: Resize = "shortest"
    interpolation: Interpolation = "bicubic"
    embed_dim: PositiveInt
    width: NonNegativeInt = 0
    layers: NonNegativeInt = 0
    patch: NonNegativeInt = 0
    timm: StrictBool = False
    trainable_text: StrictBool = True
    mean: tuple[Mean, Mean, Mean] | None = None
    std: tuple[Std, Std, Std] | None = None
    gflops_per_image: PositiveNumber
    parameters: PositiveInt
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    published_as: str | None = None

    @property
    def input_size(self) -> InputSize:
        """The size of the image tower's input, and how images are brought to it."""
        return InputSize(self.image_size, self.resize, self.interpolation)

    @property
    def architecture_path(self) -> Path | None:
        """The path of the architecture's model-config json; ``None`` if the architecture is a name of open_clip."""
        named = os.path.expanduser(self.architecture)
        return grids_folder() / named if named.endswith(".json") else None

    @property
    def has_matrices(self) -> bool:
        """Whether the weight matrices of the image tower have names, which methods need to read and train them."""
        return self.layers > 0

    @model_validator(mode="after")
    def _activation_of_tag(self) -> BackboneEntry:
        if self.weights.pretrained in QUICK_GELU_TAGS and not self.quick_gelu:
            what = f"the weights {self.weights.pretrained} were trained with QuickGELU"
            remedy = "write quick_gelu: true (the protocol's switch 'activation' swaps the activation on purpose)"
            raise ValueError(f"{what}, and plain GELU silently costs accuracy: {remedy}")
        return self


class CheckpointEntry(StrictModel):
    """A fine-tuned checkpoint made elsewhere, used as a source.

    ::

        checkpoints:
          vit-b-32:                                   # the backbone's key
            eurosat: {file: eurosat.pt, sha256: ...}  # the dataset's key; the path is relative to the catalog file

    Attributes:
        backbone, dataset: keys of the backbone and of the dataset that the checkpoint was fine-tuned on.
        file: path of the file, of the index of a checkpoint in parts, or of the folder that holds one of these. The
            path is absolute once the catalog is read.
        sha256: digest of the content, see :func:`checkpoint_digest`; part of the source's identity.
        note: where the checkpoint comes from.
    """

    backbone: Key
    dataset: Key
    file: Path
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    note: str = ""


def swap_activation(entry: BackboneEntry) -> BackboneEntry:
    """Return the entry with the other activation: GELU in place of QuickGELU, or QuickGELU in place of GELU.

    Newer open_clip versions build OpenAI's weights with plain GELU. A protocol can measure the effect of this mistake.
    """
    return entry.model_copy(update={"quick_gelu": not entry.quick_gelu})


def missing_weights(entry: BackboneEntry) -> UserError | None:
    """Return an error that names the first missing file of a backbone; ``None`` if no file is missing.

    Files that a program fetches do not count as missing.
    """
    for path in (entry.architecture_path, entry.weights.path):
        if path is not None and not path.is_file() and not (entry.weights.hub and path.suffix != ".json"):
            hint = "put the file there, or correct the catalog's entry"
            if entry.weights.by_hand is not None:
                hint = f"no program can fetch the file; by hand: {entry.weights.by_hand}"
            elif path.is_relative_to(grids_folder()):
                hint = "the file comes with the project: run from a complete checkout or reinstall"
            return UserError(f"backbone {entry.name} is not there: {display_path(path)} does not exist", hint=hint)
    if entry.weights.path is not None and not entry.weights.hub:
        try:
            checkpoint_files(entry.weights.path)
        except UnreadableCheckpoint as error:  # a part is missing
            return UserError(f"backbone {entry.name} is not there: {error}", hint="put the file there")
    return None


def missing_checkpoint(entry: CheckpointEntry) -> UserError | None:
    """Return an error that names the file of an adopted checkpoint if the file does not exist, otherwise ``None``."""
    try:
        checkpoint_files(entry.file)
    except UnreadableCheckpoint as error:
        adopt = f"sources adopt PATH --backbone {entry.backbone} --dataset {entry.dataset} --catalog FILE"
        hint = f"put the file there, or adopt the checkpoint again: python -m orchestrator {adopt}"
        return UserError(f"the checkpoint of {entry.dataset} for {entry.backbone} is not there: {error}", hint=hint)
    return None
