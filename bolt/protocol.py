"""Evaluation protocols: a protocol is a named set of switches that define how a cell is measured.

``STRICT`` is the default: a fair comparison of methods. ``PUBLISHED`` follows the BOLT authors' code where it differs
from their paper or from the official code of a baseline. ``FIELD_PROTOCOLS`` draw the images that the field's few-shot
tables are measured on, and are otherwise near ``STRICT``. Each switch is one such difference, so its effect can be
measured alone; ``docs/protocols.md`` has a table of the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

ADDED_LATER: Mapping[str, Any] = MappingProxyType({"omitted_at_default": True})
"""Metadata of a setting or switch that was added later: at its default it is no part of a cell's identity.

So results that were measured before it existed stay valid. Its default must mean the behaviour before it existed.
"""

Baseline = Literal["sound", "as_published"]
"""How a baseline is run: as its own authors define it, or as in the BOLT authors' code with its mistakes."""


Precision = Literal["float32", "tf32", "bfloat16"]
"""The number format of a tower's matrix products, see :mod:`bolt.clip.precision`."""


@dataclass(frozen=True)
class Protocol:
    """The switches of an evaluation protocol. Each can change an accuracy, so all are part of a cell's identity.

    Attributes:
        name: a name in ``PROTOCOLS``, and ``+switch=value`` for every switch that a grid changed.
        activation: ``as_trained`` uses the activation that the weights were trained with. ``swapped`` exchanges GELU
            and QuickGELU, as newer open_clip versions do for OpenAI's weights with only a warning.
        config_selection: ``fixed`` settings, or the method's candidate settings that are ``best_on_test``.
        epoch_selection: ``last`` uses the coefficients after the last epoch (the paper and its tables).
            ``best_train_loss`` uses the coefficients after the epoch with the lowest mean training loss (the released
            code). For BOLT that is the mean over the batches, as in the released code, where a partial last batch
            counts in full.
        sigma_sign: ``free`` trains signed coefficients, as in the paper. ``relu`` clamps them at zero in the forward
            pass, as in the authors' code, so coefficients that start negative are never trained.
        schedule_offset: whether the learning-rate schedule is applied after the optimiser's step, as in the authors'
            code: update 0 then uses the full rate and update s the rate of step s - 1. For BOLT's training only.
        alpha_views: BOLT chooses alpha on the ``plain`` support images, or on ``augmented`` views of them, another view
            for every candidate.
        tta_alpha: at test time, alpha is chosen ``unsupervised``, or by accuracy on the ``test_labels``.
        task_count_basis: with few sources, the width of the basis ``follow``s their number, or the basis is ``padded``
            with random directions to its width for the whole pool of sources (only in the authors' ablation).
        support_draw: ``nested`` in k, keyed by (dataset, seed); or ``fresh`` for every k, from one generator for all
            classes, as in the authors' sampler; or image for image as a code of the field draws it: ``dassl`` (CoOp and
            its successors), ``tip_adapter``, ``clip_lora``, ``lp_plus_plus``, ``gda``; or as ``listed`` in files that a
            lab has beside its data.
        support_pool: the support is drawn from the whole ``train`` split, or from the split without a random tenth
            (``less_validation``).
        ood_support: on the ood track, the support is drawn from the ``train`` split; or from the ``test`` split, and
            the other images of that split are scored.
        short_classes: for a class with fewer than k training images, ``refuse`` the cell or ``take_all`` its images.
        flips: support views are mirrored ``where_valid`` (the catalog lists the datasets whose classes a mirror does
            not change), or ``always``, also for digits and letters.
        baseline_crop: baselines are trained on the ``shared`` views, or on the ``light`` crops used to fine-tune
            sources.
        linear_probe: ``as_published`` has the factor 100 in the head's weights and halves the rate every epoch, so the
            head hardly changes.
        tip_adapter: ``as_published`` trains alpha and beta on features and labels of different images.
        lp_plus_plus: ``as_published`` uses the step sizes of gradient descent, which are above 4, as AdamW's rates.
        lora: ``as_published`` adapts the MLPs only, trains every parameter outside of linear modules, and initialises A
            ten times too large.
        atlas: ``as_published`` does not over-sample, makes no step on an odd last batch of an epoch, and clips the
            gradients before it divides them by the scale of mixed precision.
        atlas_tta: ``as_published`` resets the coefficients to zero before scoring.
        ood_label_space: variants with fewer classes are scored over all classes and over their own classes (``both``),
            or over all classes only (``all_classes``).
        meta_scoring: the meta-learned start is scored on the ``test`` split, or on the tenth of the training split that
            the authors hold out (``validation``); then its support is drawn from that tenth too.
        validation: which labelled images of a validation part a method may choose settings on: ``none``; those
            ``drawn`` as the code behind ``support_draw`` draws them, at most four a class by default; or the ``whole``
            part. The official codes of some baselines do so; see :attr:`bolt.methods.Method.uses_validation`.
        stream: on the track ``tta_stream``, test images come ``shuffled``, or with a ``drifting`` mix of classes: one
            class after another comes up and goes, several at a time.
        support_crop: the views of support images are crops of ``half`` of an image or more, or of 8 per cent or more,
            as torchvision's default is and as ``coop`` and its successors train on.
    """

    name: str = "strict"
    activation: Literal["as_trained", "swapped"] = "as_trained"
    config_selection: Literal["fixed", "best_on_test"] = "fixed"
    epoch_selection: Literal["last", "best_train_loss"] = "last"
    sigma_sign: Literal["free", "relu"] = "free"
    schedule_offset: bool = False
    alpha_views: Literal["plain", "augmented"] = "plain"
    tta_alpha: Literal["unsupervised", "test_labels"] = "unsupervised"
    task_count_basis: Literal["follow", "padded"] = "follow"
    support_draw: Literal["nested", "fresh", "dassl", "tip_adapter", "clip_lora", "lp_plus_plus", "gda", "listed"] = (
        "nested"
    )
    support_pool: Literal["train", "less_validation"] = "train"
    ood_support: Literal["train", "test"] = "train"
    short_classes: Literal["refuse", "take_all"] = "refuse"
    flips: Literal["where_valid", "always"] = "where_valid"
    baseline_crop: Literal["shared", "light"] = "shared"
    linear_probe: Baseline = "sound"
    tip_adapter: Baseline = "sound"
    lp_plus_plus: Baseline = "sound"
    lora: Baseline = "sound"
    atlas: Baseline = "sound"
    atlas_tta: Baseline = "sound"
    ood_label_space: Literal["both", "all_classes"] = "both"
    meta_scoring: Literal["test", "validation"] = "test"
    validation: Literal["none", "drawn", "whole"] = field(default="none", metadata=ADDED_LATER)
    stream: Literal["shuffled", "drifting"] = field(default="shuffled", metadata=ADDED_LATER)
    support_crop: Literal["half", "coop"] = field(default="half", metadata=ADDED_LATER)

    def selects_on_test(self, track: str) -> bool:
        """Whether test labels may choose settings or alpha on a track; such tables and runs are marked.

        ``tta_alpha`` is about the track ``tta`` alone.
        """
        return self.config_selection == "best_on_test" or (self.tta_alpha == "test_labels" and track == "tta")

    def with_switches(self, **switches: object) -> Protocol:
        """Change switches and append them to the protocol's name. Raises ``TypeError`` for unknown ones."""
        changed = {key: value for key, value in switches.items() if getattr(self, key, None) != value}
        if not changed and all(hasattr(self, key) for key in switches):
            return self
        suffix = ",".join(f"{key}={value}" for key, value in sorted(changed.items()))
        return replace(self, name=f"{self.name}+{suffix}", **changed)  # type: ignore[arg-type]


STRICT = Protocol()
PUBLISHED = Protocol(
    name="published",
    activation="swapped",
    config_selection="best_on_test",
    epoch_selection="last",
    sigma_sign="relu",
    schedule_offset=True,
    alpha_views="augmented",
    tta_alpha="test_labels",
    task_count_basis="follow",
    support_draw="fresh",
    support_pool="train",
    ood_support="test",
    short_classes="take_all",
    flips="always",
    baseline_crop="shared",
    linear_probe="as_published",
    tip_adapter="as_published",
    lp_plus_plus="as_published",
    lora="as_published",
    atlas="as_published",
    atlas_tta="as_published",
    ood_label_space="all_classes",
    meta_scoring="validation",
)
DASSL = Protocol(name="dassl", support_draw="dassl", short_classes="take_all", flips="always", ood_label_space="both")
FIELD_PROTOCOLS = (
    DASSL,
    replace(DASSL, name="coop", support_crop="coop"),
    replace(DASSL, name="tip_adapter", support_draw="tip_adapter", validation="whole"),
    replace(DASSL, name="clip_lora", support_draw="clip_lora", support_crop="coop"),
    replace(DASSL, name="lp_plus_plus", support_draw="lp_plus_plus", validation="drawn"),
)
"""How codes of the field draw, crop and choose. CLIP-LoRA draws validation images first, and reads none of them."""

PROTOCOLS = {protocol.name: protocol for protocol in (STRICT, PUBLISHED, *FIELD_PROTOCOLS)}
SWITCHES = tuple(switch.name for switch in fields(Protocol) if switch.name != "name")
