"""What a catalog file may say of domains and datasets: entries, frozen and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, field_validator, model_validator

from orchestrator.catalog.fields import OPEN_CLIP, Count, Name, StrictModel, Title, check_templates
from orchestrator.catalog.routes import Route


class Sizes(StrictModel):
    """Expected number of images per part, after the split recipe."""

    train: Annotated[StrictInt, Field(ge=0)]
    test: Count


class Splits(StrictModel):
    """The named recipe that makes the parts."""

    recipe: Literal["official", "eighty_twenty", "eighty_ten_ten", "published"]


class DomainEntry(StrictModel):
    """A family of datasets that share sources."""

    name: Name
    title: Title


class DatasetEntry(StrictModel):
    """One dataset.

    Attributes:
        name: its key, lower-case.
        title: as printed in tables.
        domain: key of the family it shares sources with.
        route: how its images are had.
        class_names: words in label order, or folder name -> words, or ``open_clip.NAME``; ``None``: the data's own.
        prompts: templates with ``{}``, or the name of a set in ``grids/prompts.yaml``, or ``open_clip.NAME``.
        renamed: better words for some of the data's own class names, where ``class_names`` does not give them all.
        classes: how many classes the head has.
        mirrorable: whether a mirrored image keeps its class, as a mirrored b or an arrow to the left does not; where
            it does not, views of the support are not flipped.
        exif_rotation: whether images are turned as their EXIF orientation says. Benchmarks are not: published numbers
            were measured without. One's own photographs should be.
        image_side: about the shortest side of its images in pixels, where it is known; their bytes are estimated by it.
        sizes: expected images per part; ``train: 0`` for a set that can only be evaluated on.
        smallest_class: training images of the smallest class, where it is known.
        splits: the recipe that makes the parts; the official ones by default.
        kin: key of the group that shares content; its members leave together under ``leave_group_out``.
        licence: under which terms the images come.
        gated: what the user must do before the images can be fetched (an account, an agreement), where anything.
        download_bytes: size of the download; rounded where only a rounded one is published.
        source: address of the page they come from, where the route does not say it.
        note: where sources disagree.
        published_as: its name in the paper's result tables.
        published_classes: the paper's class count where it differs in kind from ``classes``.
        fine_tune_epochs: epochs of its source model; ``None``: about 2,000 steps.
    """

    name: Name
    title: Title
    domain: Name
    route: Route
    class_names: tuple[str, ...] | dict[str, str] | str | None = None
    renamed: dict[str, str] = Field(default={})
    prompts: tuple[str, ...] | str
    classes: Annotated[StrictInt, Field(ge=2)]
    mirrorable: StrictBool = True
    exif_rotation: StrictBool = False
    image_side: Count | None = None
    sizes: Sizes
    smallest_class: Count | None = None
    splits: Splits = Splits(recipe="official")
    kin: str | None = None
    licence: str
    gated: str = ""
    download_bytes: Count | None = None
    source: str | None = None
    note: str = ""
    published_as: str | None = None
    published_classes: Count | None = None
    fine_tune_epochs: Count | None = None

    @field_validator("class_names", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.startswith(OPEN_CLIP):
            raise ValueError(f"{value!r} is neither a list of names nor a list of open_clip ({OPEN_CLIP}NAME)")
        words = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        if isinstance(words, list | tuple):
            for word in words:
                if not isinstance(word, str) or not word.strip():
                    raise ValueError(f"the class name {word!r} is not text; write it in quotes")
        elif words is not None and not isinstance(words, str):
            raise ValueError(f"{value!r} is neither a list of names nor a mapping from folder name to words")
        return value

    @field_validator("prompts", mode="before")
    @classmethod
    def _templates(cls, value: Any) -> Any:
        return value if isinstance(value, str) else check_templates(value)

    @model_validator(mode="after")
    def _consistent(self) -> DatasetEntry:
        words = self.class_names
        if isinstance(words, tuple | dict):
            if len(words) != self.classes:
                raise ValueError(f"class_names has {len(words)} names, classes says {self.classes}")
            texts = list(words.values()) if isinstance(words, dict) else list(words)
            twice = sorted({text for text in texts if texts.count(text) > 1})
            if twice:
                raise ValueError(f"two classes are called {twice[0]!r}; the text head could not tell them apart")
        if self.renamed and words is not None:
            raise ValueError(
                "renamed corrects the data's own names, and class_names replaces them; give one of the two"
            )
        if self.smallest_class is not None and self.smallest_class * self.classes > self.sizes.train:
            raise ValueError(f"smallest_class {self.smallest_class} x {self.classes} classes exceeds sizes.train")
        return self

    @property
    def access(self) -> Literal["open", "gated", "manual"]:
        """Whether anybody may fetch its images, something comes first, or no address serves them to a program."""
        if self.route.kind == "manual":
            return "manual"
        return "gated" if self.gated else "open"

    @property
    def has_training_images(self) -> bool:
        """Whether it has images to train on."""
        return self.sizes.train > 0

    @property
    def max_shots(self) -> int:
        """The largest k every class can give: the smallest class where it is known, else at most the average."""
        return self.smallest_class or self.sizes.train // self.classes
