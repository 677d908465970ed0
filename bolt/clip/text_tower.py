"""CLIP's text tower with token embeddings as its input. Both the input and the weights can be trained.

open_clip's text tower takes token numbers, so trained context vectors cannot be its input. No adapter can be attached
to its attention either (see :mod:`bolt.clip.tower`). This tower takes embeddings and adapters. Its outputs
are the same.

Shape legend: P prompts, L tokens of the longest prompt, W width of the text tower, D joint embedding width, J blocks
with learned tokens, K learned tokens.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bolt.clip.precision import forward_pass
from bolt.clip.tensor_names import tensor_names
from bolt.clip.tower import Block, Tower, put_prompt
from bolt.clip.tower_shape import TextShape, text_shape_from_open_clip

PROMPTS_AT_ONCE = 256
"""Largest number of prompts that the tower encodes at once, to limit the memory. More prompts are encoded in parts, and
training computes each part again in the backward pass."""


class TextTower(Tower):
    """A causal text transformer: token embeddings (P, L, W) -> raw joint embeddings (P, D).

    Its learned tokens replace the words after the start token.
    """

    shape: TextShape

    def __init__(self, shape: TextShape) -> None:
        super().__init__(shape)
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positional_embedding = nn.Parameter(torch.empty(shape.context_length, shape.width))
        self.blocks = nn.ModuleList(Block(shape, causal=True) for _ in range(shape.layers))
        self.ln_final = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.proj = nn.Linear(shape.width, shape.embed_dim, bias=False)

    @classmethod
    def from_open_clip(cls, model: nn.Module) -> TextTower:
        """Convert the text tower of an open_clip model to a frozen tower in evaluation mode.

        The two towers share all tensors except the projection, which is transposed. Raises ``UnsupportedTower`` for any
        other architecture.
        """
        text = getattr(model, "text", model)  # some models of open_clip keep the text tower in this attribute
        with torch.device("meta"):  # allocates no memory and draws no random numbers
            tower = cls(text_shape_from_open_clip(text))
        paths = {name: name for name in ("positional_embedding", "token_embedding.weight")}
        paths |= {name: name for name in ("ln_final.weight", "ln_final.bias")}
        paths |= {n: path for n, path in tensor_names(tower.shape.layers).items() if n.startswith("transformer.")}
        theirs = dict(text.named_parameters())
        for name, path in paths.items():
            tower.place(path, theirs[name])
        tower.place("proj.weight", theirs["text_projection"].T.contiguous())
        return tower.eval()

    def embed(self, tokens_PL: Tensor) -> Tensor:
        """Map token numbers (P, L) to their embeddings (P, L, W), without the embeddings of the positions."""
        return cast(Tensor, self.token_embedding(tokens_PL))

    def forward(self, embeddings_PLW: Tensor, ends_P: Tensor) -> Tensor:
        """Return raw (not normalised) text embeddings, (P, D).

        Args:
            embeddings_PLW: embeddings of the tokens, without the embeddings of the positions.
            ends_P: position of each prompt's end token, where the prompt's embedding is read. Tokens after the end
                token have no effect. To save time, the caller cuts off the padding after the last end token.
        """
        if len(ends_P) <= PROMPTS_AT_ONCE:
            return self._encode(embeddings_PLW, ends_P)
        parts = zip(*(torch.split(each, PROMPTS_AT_ONCE) for each in (embeddings_PLW, ends_P)), strict=True)
        if torch.is_grad_enabled():
            return torch.cat([checkpoint(self._encode, *part, use_reentrant=False) for part in parts])
        return torch.cat([self._encode(*part) for part in parts])

    def _encode(self, embeddings_PLW: Tensor, ends_P: Tensor) -> Tensor:
        length = embeddings_PLW.shape[1]
        x_PLW = put_prompt(embeddings_PLW, self.prompts, 0, at=1) + self.positional_embedding[:length]
        with forward_pass(self.precision, x_PLW.device):
            for index, block in enumerate(self.blocks):
                x_PLW = block(put_prompt(x_PLW, self.prompts, index, at=1) if index else x_PLW, length)
            last_PW = x_PLW[torch.arange(len(ends_P), device=ends_P.device), ends_P]
            embeddings_PD = cast(Tensor, self.proj(self.ln_final(last_PW)))
        return embeddings_PD.float() if self.precision == "bfloat16" else embeddings_PD
