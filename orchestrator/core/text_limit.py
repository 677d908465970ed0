"""The highest accuracy that is possible on a dataset whose class words the text tower cannot tell apart."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.util.units import listed, pluralize

_SHOWN_GROUPS = 4
_SHOWN_CLASSES = 6


@dataclass(frozen=True)
class TextLimit:
    """The distinct class vectors of one zero-shot head, and the highest accuracy that they allow.

    Attributes:
        classes, distinct: how many classes, and how many distinct vectors they have.
        highest: the highest accuracy in per cent of a method that classifies by these vectors alone.
        shared: the words of the classes that share a vector, group by group.
        methods: titles of the measured methods that classify by these vectors alone.
    """

    backbone: str
    dataset: str
    classes: int
    distinct: int
    highest: float
    shared: tuple[tuple[str, ...], ...]
    methods: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The limit in one sentence, with the methods that it applies to."""
        which = ", ".join(self.methods) or "zero-shot and every method that classifies by the class words alone"
        return (
            f"{self.dataset}: {pluralize(self.distinct, 'distinct vector')} for {self.classes} classes "
            f"under {self.backbone}; {which} cannot exceed {self.highest:.1f} %"
        )

    @property
    def shared_words(self) -> str:
        """The groups of classes whose words give the same class vector, as text: ``grass = industry; cat = dog``."""
        groups = [
            " = ".join(group[:_SHOWN_CLASSES]) + f" = ... ({len(group)} in all)" * (len(group) > _SHOWN_CLASSES)
            for group in self.shared
        ]
        return listed(groups, _SHOWN_GROUPS, "; ")
