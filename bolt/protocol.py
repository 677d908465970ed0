"""A protocol: the named set of switches that say how a measurement is made.

``STRICT`` is the default and the fair way. ``PUBLISHED`` is what the authors' code does where that differs from
their paper, or from the official code of a baseline; each switch is one such difference, so that any of them can be
turned alone to see what it explains. ``docs/protocols.md`` has them in one table with their effects.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

Baseline = Literal["sound", "as_published"]
"""A baseline done as its own authors meant it, or as the BOLT authors' code does it, mistakes included."""


@dataclass(frozen=True)
class Protocol:
    """How a cell is measured. Everything in here can change the number, so all of it is part of a cell's identity.

    Attributes:
        name: ``strict``, ``published``, or either with ``+changes`` when a grid turned single switches.
        activation: ``as_trained`` is the one the weights were trained with; ``swapped`` builds the network with the
            other of GELU and QuickGELU, as newer open_clip versions do for OpenAI's weights with only a warning.
        config_selection: ``fixed`` settings, or of a method's ``candidates`` the ``best_on_test``.
        epoch_selection: ``last`` keeps the final coefficients (paper, tables); ``best_train_loss`` restores the
            epoch with the lowest mean training loss (the released code).
        sigma_sign: ``free`` trains signed coefficients as in the paper; ``relu`` clamps them at zero in the
            forward pass as the authors' code does, so that entries that start negative never move.
        schedule_offset: the authors call the learning-rate schedule after the optimiser's step: update 0 uses the
            full rate and update s the rate of step s - 1. BOLT's training only.
        alpha_views: images BOLT's alpha sweep scores: ``plain`` un-augmented support, or one ``augmented`` view of it.
        tta_alpha: at test time alpha is chosen ``unsupervised``, or by accuracy on the ``test_labels``.
        task_count_basis: with few sources the basis is as wide as they ``follow``, or ``padded`` with arbitrary
            directions to the width of the whole pool.
        support_draw: ``nested`` in k, keyed by (dataset, seed); ``fresh`` for every k from one generator that runs
            through the classes.
        support_pool: supports come from the whole ``train`` split, or from it ``less_validation``, a random tenth.
        ood_support: images of the ood track's support: of the ``train`` split, or of the ``test`` split, of
            which the rest is scored.
        short_classes: a class with fewer than k training images: ``refuse`` the cell, or ``take_all`` there are.
        flips: support views are mirrored ``where_valid`` (the catalog knows the datasets whose classes survive it),
            or ``always``, digits and letters included.
        baseline_crop: baselines see the ``shared`` views, or the ``light`` ones that sources are fine-tuned with.
        linear_probe: ``as_published`` keeps the factor 100 in the head and halves the rate every epoch: it cannot move.
        tip_adapter: ``as_published`` trains alpha and beta on features and labels that do not belong together.
        lp_plus_plus: ``as_published`` feeds the step sizes of gradient descent, above 4, to AdamW.
        lora: ``as_published`` adapts the MLPs only, unfreezes all that is no linear module, starts 10 times too far.
        atlas: ``as_published`` neither over-samples nor steps on an epoch's odd last batch, and clips scaled gradients.
        atlas_tta: ``as_published`` restores the all-zero coefficients before scoring.
        ood_label_space: variants with fewer classes are scored over all classes and over their own (``both``), or
            over all (``all_classes``).
        meta_scoring: the meta-learned start is scored on the ``test`` split, or on the tenth of the training split
            that the authors hold out (``validation``), from which its support is drawn too.
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
    support_draw: Literal["nested", "fresh"] = "nested"
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

    @property
    def selects_on_test(self) -> bool:
        """Whether test labels may choose anything; every table and run of such a protocol says so."""
        return self.config_selection == "best_on_test" or self.tta_alpha == "test_labels"

    def with_switches(self, **switches: object) -> Protocol:
        """The protocol with single switches turned; its name says so. Unknown switches raise ``TypeError``."""
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
    task_count_basis="padded",
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
PROTOCOLS = {protocol.name: protocol for protocol in (STRICT, PUBLISHED)}
SWITCHES = tuple(field.name for field in fields(Protocol) if field.name != "name")
