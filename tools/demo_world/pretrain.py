"""Pre-train the tiny CLIP on drawn pictures with captions, and write its weights.

    python -m tools.demo_world.pretrain --out grids/backbones/tiny-clip.safetensors

The number of pictures, the seed and the number of threads determine the result.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from bolt.clip.tensor_files import save_tensors
from orchestrator.drawn_world.pictures.keyed_random import keyed_seed
from tools.demo_world.caption_pairs import LATE_SHARES, SHARES, draw_pairs

CHUNK = 8192
"""Pictures that are drawn at once. Large chunks keep the overhead of many small tensor operations low."""

TURN = 60
"""First chunk that is drawn with ``LATE_SHARES``."""


def build(config: Path, seed: int) -> CLIP:
    """Return a CLIP with random weights that depend on the seed only. The global generator keeps its state."""
    fields = json.loads(config.read_text())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keyed_seed("tiny clip", seed))
        model: CLIP = CLIP(**fields)
    return model


def contrastive(images: Tensor, texts: Tensor, owner: Tensor, scale: Tensor) -> Tensor:
    """Return CLIP's symmetric loss for images (b, d) and distinct captions (u, d); image i has caption owner[i].

    In a small world, a batch repeats captions, and equal captions must not be each other's negatives. If all captions
    differ, this is CLIP's loss.
    """
    logits = scale * functional.normalize(images, dim=-1) @ functional.normalize(texts, dim=-1).T
    to_text = functional.cross_entropy(logits, owner)
    share = functional.one_hot(owner, len(texts)).to(logits.dtype)
    share = share / share.sum(0, keepdim=True)
    to_image = -(share * logits.log_softmax(0)).sum(0).mean()
    return (to_text + to_image) / 2


def encode_captions(model: CLIP, tokens: Tensor) -> Tensor:
    """Encode tokens (u, context) with the text tower. Attention is causal, so trailing padding is cut off first."""
    length = int((tokens != 0).sum(1).max())
    tokens = tokens[:, :length]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    pooled: Tensor = x[torch.arange(len(x)), tokens.argmax(-1)] @ model.text_projection
    return pooled


def prepare(pictures: Tensor) -> Tensor:
    """Convert bytes (n, 32, 32, 3) to normalised model input (n, 3, 32, 32)."""
    mean = torch.tensor(open_clip.OPENAI_DATASET_MEAN).view(3, 1, 1)
    std = torch.tensor(open_clip.OPENAI_DATASET_STD).view(3, 1, 1)
    return (pictures.permute(0, 3, 1, 2).float() / 255.0 - mean) / std


def export(model: CLIP, seen: Tensor, path: Path, notes: dict[str, str]) -> None:
    """Write float16 weights in one step. Tokens that no caption had are untrained, so they get a zero vector."""
    weights = {name: tensor.detach().half().contiguous() for name, tensor in model.state_dict().items()}
    weights["token_embedding.weight"] = weights["token_embedding.weight"] * seen[:, None].half()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_tensors(weights, partial, metadata=notes)
    partial.chmod(0o644)
    partial.replace(path)


def groups(model: CLIP) -> list[dict[str, Any]]:
    """Return the parameters with weight decay (matrices), and those without (gains, biases, tables, temperature)."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (free if parameter.ndim < 2 or "embedding" in name else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters that determine the weights, together with the pre-training pictures."""

    images: int = 900_000
    batch: int = 512
    peak: float = 1.5e-3
    """Highest learning rate."""
    seed: int = 1

    @property
    def steps(self) -> int:
        """Number of optimiser steps in the single pass over the pictures. An incomplete last batch is dropped."""
        return self.images // self.batch

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: a short rise, a long plateau, and a straight fall over the last 30 %.

        The rate of the plateau does not depend on the number of pictures, so a longer run can start from a checkpoint
        of the plateau.
        """
        return self.peak * min((step + 1) / 200, (self.steps - step) / (0.3 * self.steps), 1.0)


@dataclass
class State:
    """The state of a pre-training, which a snapshot saves."""

    model: CLIP
    optimiser: torch.optim.AdamW
    seen: Tensor
    """One for each token that a caption had, otherwise zero, (vocabulary,)."""
    step: int = 0

    def save(self, path: Path) -> None:
        held = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        partial = path.with_suffix(".partial")
        torch.save({**held, "seen": self.seen, "step": self.step}, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        held = torch.load(path, weights_only=True)
        self.model.load_state_dict(held["model"])
        self.optimiser.load_state_dict(held["optimiser"])
        self.seen, self.step = held["seen"], held["step"]


def learn_chunk(state: State, recipe: Recipe, tokenize: Callable[[str], Tensor]) -> float:
    """Draw the next chunk of pictures and learn from it, batch by batch; return the mean loss."""
    chunk = state.step * recipe.batch // CHUNK
    shares = SHARES if chunk < TURN else LATE_SHARES
    pictures, captions = draw_pairs(CHUNK, keyed_seed("chunk", recipe.seed, chunk), shares)
    inputs = prepare(torch.from_numpy(pictures))
    losses = []
    for start in range(0, CHUNK, recipe.batch):
        if state.step == recipe.steps:
            break
        for group in state.optimiser.param_groups:
            group["lr"] = recipe.rate(state.step)
        names = captions[start : start + recipe.batch]
        place = {caption: index for index, caption in enumerate(dict.fromkeys(names))}
        tokens = torch.stack([tokenize(caption) for caption in place])
        state.seen[tokens.flatten()] = 1.0
        loss = contrastive(
            state.model.encode_image(inputs[start : start + recipe.batch]),
            encode_captions(state.model, tokens),
            torch.tensor([place[caption] for caption in names]),
            state.model.logit_scale.exp(),
        )
        state.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
        state.optimiser.step()
        with torch.no_grad():
            state.model.logit_scale.clamp_(max=math.log(100.0))
        state.step += 1
        losses.append(loss.item())
    return sum(losses) / len(losses)


def pretrain(config: Path, out: Path, recipe: Recipe, checkpoint: Path | None, save_every: int) -> None:
    """Train on `recipe.images` pictures, each seen once. Print a line per chunk, and save every `save_every` steps."""
    if CHUNK % recipe.batch:
        raise SystemExit(f"--batch must divide {CHUNK}, the number of pictures drawn at once; {recipe.batch} does not")
    model = build(config, recipe.seed)
    optimiser = torch.optim.AdamW(groups(model), lr=recipe.peak, betas=(0.9, 0.98), eps=1e-6)
    state = State(model, optimiser, torch.zeros(model.vocab_size))
    if checkpoint is not None and checkpoint.exists():
        state.load(checkpoint)
    tokenizer = open_clip.SimpleTokenizer(context_length=model.context_length)
    tokenize = cache(lambda caption: tokenizer(caption)[0])
    begun, first, saved = time.monotonic(), state.step, state.step
    while state.step < recipe.steps:
        loss = learn_chunk(state, recipe, tokenize)
        pace = (time.monotonic() - begun) / (state.step - first)
        print(
            f"step {state.step}/{recipe.steps}  loss {loss:.3f}  scale {model.logit_scale.exp().item():.1f}  "
            f"{recipe.batch / pace:.0f} images/s  {pace * (recipe.steps - state.step) / 60:.1f} min left",
            flush=True,
        )
        if state.step - saved >= save_every or state.step == recipe.steps:
            saved = state.step
            export(model, state.seen, out, {**{k: str(v) for k, v in asdict(recipe).items()}, "step": str(saved)})
            if checkpoint is not None:
                state.save(checkpoint)


def main() -> None:
    default = Recipe()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="weights file (.safetensors)")
    parser.add_argument("--config", type=Path, default=Path("grids/backbones/tiny-clip.json"))
    parser.add_argument("--images", type=int, default=default.images, help="pictures to learn from")
    parser.add_argument("--batch", type=int, default=default.batch)
    parser.add_argument("--peak", type=float, default=default.peak, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=160, help="steps between two writes")
    parser.add_argument("--checkpoint", type=Path, help="file for the state of the run, from which it resumes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = Recipe(options.images, options.batch, options.peak, options.seed)
    pretrain(options.config, options.out, recipe, options.checkpoint, options.save_every)


if __name__ == "__main__":
    main()
