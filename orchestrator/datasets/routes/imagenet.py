"""The WordNet ids of ImageNet's classes in label order."""

from __future__ import annotations

from functools import cache


@cache
def wnids() -> tuple[str, ...]:
    """The WordNet ids of the 1,000 classes of ILSVRC-2012, in the order of the labels.

    Labels follow the sorted ids, in torchvision's ImageFolder as in open_clip's ``IMAGENET_CLASSNAMES``. open_clip
    ships names but no ids; timm, on which open_clip depends, ships them.
    """
    from timm.data import ImageNetInfo

    found = tuple(ImageNetInfo("imagenet-1k").label_names())
    if len(found) != 1000 or list(found) != sorted(found):
        raise RuntimeError("timm's list of ImageNet's classes is not the 1,000 sorted WordNet ids")
    return found
