"""Prompts of class names as inputs of the text tower: fixed templates, and CoOp's learned context.

Shape legend: C classes, L tokens of the longest prompt, K context tokens, W width of the text tower, D joint embedding
width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.clip.text_tower import TextTower

ClassPosition = Literal["end", "middle", "front"]
"""Where the class name stands: behind the context, between its halves, or before it."""


class LearnedPrompts:
    """The prompts "start, context, class name, full stop, end" with a context of embeddings instead of words.

    Args:
        backbone: the CLIP with the tokeniser and the text tower.
        class_names: the names; ``_`` counts as a space.
        context_tokens: how many embeddings the context has.
        position: where the class name stands.

    Raises:
        ValueError: if a prompt has more tokens than the text tower takes. The message names the class.
        bolt.clip.tower_shape.UnsupportedTower: for a text tower that is not CLIP's.
    """

    def __init__(
        self, backbone: Backbone, class_names: Sequence[str], context_tokens: int, position: ClassPosition = "end"
    ) -> None:
        self._tower = tower = backbone.text_tower
        names = [name.replace("_", " ") for name in class_names]
        tokens_CL = backbone.tokenize([f"{name}." for name in names])
        self._ends_C = tokens_CL.argmax(dim=-1) + context_tokens
        length, limit = int(self._ends_C.max()) + 1, tower.shape.context_length
        if length > limit:
            longest = names[int(self._ends_C.argmax())]
            raise ValueError(
                f"the prompt of class {longest!r} has {length} tokens with {context_tokens} of context, and the text "
                f"tower takes {limit}; take a shorter context or class name"
            )
        words_CLW = tower.embed(tokens_CL[:, : length - context_tokens])
        self._start_CLW, self._rest_CLW = words_CLW[:, :1], words_CLW[:, 1:]
        name_lengths = (backbone.tokenize(names).argmax(dim=-1) - 1).tolist()
        orders = [_token_order(name_length, context_tokens, length, position) for name_length in name_lengths]
        self._order_CL = torch.tensor(orders, device=tokens_CL.device)

    def embeddings(self, context_KW: Tensor) -> Tensor:
        """Return the token embeddings of all prompts, (C, L, W). The context is (K, W), or (C, K, W): one per class."""
        context_CKW = context_KW.expand(len(self._ends_C), -1, -1)
        prompts_CLW = torch.cat([self._start_CLW, context_CKW, self._rest_CLW], dim=1)
        return prompts_CLW.gather(1, self._order_CL[..., None].expand_as(prompts_CLW))

    def encode(self, context_KW: Tensor) -> Tensor:
        """Return the unit text embedding of every class, (C, D), differentiable in the context."""
        return F.normalize(self._tower(self.embeddings(context_KW), self._ends_C), dim=-1)


def _token_order(name_length: int, context_tokens: int, length: int, position: ClassPosition) -> list[int]:
    """Return the order of a prompt's tokens, as indices into "start, context, class name, full stop, end, padding"."""
    before = {"end": context_tokens, "middle": context_tokens // 2, "front": 0}[position]
    name = range(1 + context_tokens, 1 + context_tokens + name_length)
    context, rest = range(1, 1 + context_tokens), range(name.stop, length)
    return [0, *context[:before], *name, *context[before:], *rest]


def word_embeddings(backbone: Backbone, words: str) -> Tensor:
    """Return the token embeddings (K, W) of ``words``, without the start and the end token.

    Raises ``ValueError`` for a text without words: no context would be trained.
    """
    tokens_L = backbone.tokenize([words])[0]
    if (end := int(tokens_L.argmax())) < 2:
        raise ValueError(f"initial_words is {words!r}; it takes one or more words")
    return backbone.text_tower.embed(tokens_L[1:end])


def encode_tokens(tower: TextTower, tokens_CL: Tensor) -> Tensor:
    """Return the unit text embeddings of all classes, (C, D), from the token numbers of one prompt per class."""
    return F.normalize(tower(tower.embed(tokens_CL), tokens_CL.argmax(dim=-1)), dim=-1)
