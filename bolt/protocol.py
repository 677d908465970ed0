"""Evaluation protocols: a protocol is a named set of switches that define how a cell is measured.

``STRICT`` is the default: a fair comparison of methods. ``PUBLISHED`` follows the BOLT authors' code where that code
differs from their paper or from the official code of a baseline. The protocols in ``FIELD_PROTOCOLS`` draw the training
images of published few-shot tables, and are close to ``STRICT`` otherwise. Each switch is one difference between
protocols, so the effect of a difference can be measured alone. ``docs/protocols.md`` has a table of the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

ADDED_LATER: Mapping[str, Any] = MappingProxyType({"omitted_at_default": True})
"""Metadata of a setting or switch that was added after results had been measured.

A cell's identity leaves such a setting out while the setting has its default value, so earlier results stay valid. The
default must therefore mean the earlier behaviour.
"""

Baseline = Literal["sound", "as_published"]
"""How a baseline is run. ``sound``: as the baseline's authors define it. ``as_published``: as the BOLT authors' code
runs it, mistakes included."""

Precision = Literal["float32", "tf32", "bfloat16"]
"""The number format of a tower's matrix products, see :mod:`bolt.clip.precision`."""


@dataclass(frozen=True)
class Protocol:
    """The switches of an evaluation protocol. Each can change an accuracy, so all are part of a cell's identity.

    Attributes:
        name: a name in ``PROTOCOLS``, followed by ``+switch=value,...`` for the switches that a grid changed.
        activation: ``as_trained`` uses the activation that the weights were trained with. ``swapped`` exchanges GELU
            and QuickGELU, as newer versions of open_clip do for OpenAI's weights, with only a warning.
        config_selection: ``fixed`` uses the given settings. ``best_on_test`` tries the method's candidate settings, and
            keeps those with the best test accuracy.
        epoch_selection: ``last`` uses the coefficients after the last epoch, as in the paper and its tables.
            ``best_train_loss`` uses the coefficients after the epoch with the lowest mean training loss, as in the
            released code. For BOLT this is the mean over the batches: a partial last batch counts like a full one.
        sigma_sign: ``free`` trains signed coefficients, as in the paper. ``relu`` clamps them at zero in the forward
            pass, as in the authors' code, so coefficients that start negative are never trained.
        schedule_offset: whether every learning rate takes effect one step late, because the schedule sets it after the
            optimiser's step, as in the authors' code. The first step then uses the highest rate. Only BOLT's training
            reads this switch.
        alpha_views: alpha is the factor of the update that the sources give the tower. It is chosen on ``plain``
            support images, or on ``augmented`` views of them, a different view for each candidate.
        tta_alpha: on the ``tta`` track, alpha is chosen ``unsupervised``, or by the accuracy on the test split
            (``test_labels``).
        task_count_basis: the width of BOLT's basis if there are few sources. ``follow``: fewer sources make a narrower
            basis. ``padded``: random directions widen the basis as if there were ``padded_sources`` sources (a setting
            of the method). The authors widen the basis in their ablation only.
        support_draw: how the support is drawn. ``nested``: with one dataset and seed, a support of larger k contains
            the one of smaller k. ``fresh``: another draw for every k, with one generator for all classes, as in the
            authors' sampler. ``listed``: read from files beside the data. Any other value names the published code
            whose draw is repeated: ``dassl`` (CoOp and its successors), ``tip_adapter``, ``clip_lora``,
            ``lp_plus_plus``, ``gda``.
        support_pool: the support is drawn from the whole ``train`` split, or from the split without a random tenth
            (``less_validation``).
        ood_support: on the ood track, the support is drawn from the ``train`` split; or from the ``test`` split, whose
            other images are then scored.
        short_classes: if a class has fewer than k training images, ``refuse`` the cell, or ``take_all`` images of the
            class.
        flips: support views are mirrored ``where_valid``, or ``always``, even for digits and letters. The catalog lists
            the datasets whose classes stay the same in a mirror.
        baseline_crop: baselines are trained on the ``shared`` views, which all methods see, or on the ``light`` crops
            that are used to fine-tune source models.
        linear_probe: ``as_published`` multiplies the head's weights by the logit scale, 100, and halves the learning
            rate every epoch, so the head hardly changes.
        tip_adapter: ``as_published`` trains alpha and beta with the features of one image and the label of another.
        lp_plus_plus: ``as_published`` takes the method's step sizes, which are meant for gradient descent, as learning
            rates of AdamW. The learning rate of the weights is at least 4.
        lora: ``as_published`` adapts the MLPs only, trains every parameter outside of linear modules, and initialises A
            ten times too large.
        atlas: ``as_published`` does not repeat a small support within an epoch. It makes no step if an epoch has fewer
            batches left than one step accumulates. It clips the gradients before it divides them by the scale of mixed
            precision.
        atlas_tta: ``as_published`` resets the coefficients to zero before scoring.
        ood_label_space: a test set with only some of the classes is scored over all classes and over its own classes
            (``both``), or over all classes only (``all_classes``).
        meta_scoring: the meta-learned start is scored on the ``test`` split, or on the tenth of the training split that
            the authors hold out (``validation``). In the second case, the support is drawn from that tenth too.
        validation: the labelled validation images on which a method may choose its settings. ``none``: no images.
            ``drawn``: a few per class, as drawn by the code that ``support_draw`` names, or at most four per class if
            that code draws no validation images. ``whole``: the whole validation part. The official codes of some
            baselines choose settings on such images, see :attr:`bolt.methods.Method.uses_validation`.
        stream: on the track ``tta_stream``, test images come ``shuffled``; or the mix of classes is ``drifting``:
            classes appear one after another and disappear again, several at a time.
        support_crop: ``half``: the views of support images are crops of at least half of an image. ``coop``: of at
            least 8 per cent, as in torchvision's default and in the code of CoOp and its successors.
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
        """Return whether test labels choose settings or alpha on a track. Tables and runs mark such results.

        ``tta_alpha`` concerns the track ``tta`` only.
        """
        return self.config_selection == "best_on_test" or (self.tta_alpha == "test_labels" and track == "tta")

    def with_switches(self, **switches: object) -> Protocol:
        """Return a protocol with changed switches. The name of the new protocol lists them.

        Raises ``TypeError`` for an unknown switch.
        """
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
    sigma_sign="relu",
    schedule_offset=True,
    alpha_views="augmented",
    tta_alpha="test_labels",
    support_draw="fresh",
    ood_support="test",
    short_classes="take_all",
    flips="always",
    linear_probe="as_published",
    tip_adapter="as_published",
    lp_plus_plus="as_published",
    lora="as_published",
    atlas="as_published",
    atlas_tta="as_published",
    ood_label_space="all_classes",
    meta_scoring="validation",
)
DASSL = Protocol(name="dassl", support_draw="dassl", short_classes="take_all", flips="always")
FIELD_PROTOCOLS = (
    DASSL,
    replace(DASSL, name="coop", support_crop="coop"),
    replace(DASSL, name="tip_adapter", support_draw="tip_adapter", validation="whole"),
    replace(DASSL, name="clip_lora", support_draw="clip_lora", support_crop="coop"),
    replace(DASSL, name="lp_plus_plus", support_draw="lp_plus_plus", validation="drawn"),
)
"""Protocols that draw images, crop them and choose settings as published code does. CLIP-LoRA's code draws validation
images, but does not read them, so the protocol ``clip_lora`` has none."""

PROTOCOLS = {protocol.name: protocol for protocol in (STRICT, PUBLISHED, *FIELD_PROTOCOLS)}
SWITCHES = tuple(switch.name for switch in fields(Protocol) if switch.name != "name")
