"""Pre-train the tiny CLIP on the picture book and write its weights.

    python -m orchestrator.datasets.toy.pretrain --out grids/backbones/tiny-clip.safetensors

The number of pictures, the seed and the thread count decide the result; the clock does not.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import CLIP
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.datasets.toy.dice import keyed_seed
from orchestrator.datasets.toy.picture_book import draw_pairs

CHUNK = 8192
"""Pictures drawn at a time; drawing in bulk keeps the overhead of the many small tensor operations low."""


def build(config: Path, seed: int) -> CLIP:
    """A freshly initialised model; the weights depend on the seed alone and the global generator is left as it was."""
    fields = json.loads(config.read_text())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keyed_seed("tiny clip", seed))
        model: CLIP = CLIP(**fields)
    return model


def contrastive(images: Tensor, texts: Tensor, owner: Tensor, scale: Tensor) -> Tensor:
    """CLIP's symmetric loss for images (b, d) and their distinct captions (u, d); image i has caption owner[i].

    A small world repeats its captions inside a batch. Merging equal captions keeps them from being each other's
    negatives, and equals CLIP's loss where all captions differ.
    """
    logits = scale * functional.normalize(images, dim=-1) @ functional.normalize(texts, dim=-1).T
    to_text = functional.cross_entropy(logits, owner)
    share = functional.one_hot(owner, len(texts)).to(logits.dtype)
    share = share / share.sum(0, keepdim=True)
    to_image = -(share * logits.log_softmax(0)).sum(0).mean()
    return (to_text + to_image) / 2


def encode_captions(model: CLIP, tokens: Tensor) -> Tensor:
    """The text tower on tokens (u, context), cut behind the longest caption: attention looks back only."""
    length = int((tokens != 0).sum(1).max())
    tokens = tokens[:, :length]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    pooled: Tensor = x[torch.arange(len(x)), tokens.argmax(-1)] @ model.text_projection
    return pooled


def prepare(pictures: Tensor) -> Tensor:
    """Bytes (n, 32, 32, 3) to normalised model input (n, 3, 32, 32)."""
    mean = torch.tensor(open_clip.OPENAI_DATASET_MEAN).view(3, 1, 1)
    std = torch.tensor(open_clip.OPENAI_DATASET_STD).view(3, 1, 1)
    return (pictures.permute(0, 3, 1, 2).float() / 255.0 - mean) / std


def export(model: CLIP, seen: Tensor, path: Path, notes: dict[str, str]) -> None:
    """Write float16 weights in one step. Words that no caption held get a zero vector: they carry no meaning."""
    weights = {name: tensor.detach().half().contiguous() for name, tensor in model.state_dict().items()}
    weights["token_embedding.weight"] = weights["token_embedding.weight"] * seen[:, None].half()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(weights, partial, metadata=notes)
    partial.chmod(0o644)
    partial.replace(path)


def groups(model: CLIP) -> list[dict[str, Any]]:
    """Parameters with and without weight decay: matrices decay; gains, biases, tables and the temperature do not."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (free if parameter.ndim < 2 or "embedding" in name else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]


def pretrain(config: Path, out: Path, images: int, batch: int, peak: float, seed: int, save_every: int) -> None:
    """One pass over `images` pictures, none of which is seen twice. Prints a line and saves now and then."""
    model = build(config, seed)
    tokenizer = open_clip.SimpleTokenizer(context_length=model.context_length)
    optimiser = torch.optim.AdamW(groups(model), lr=peak, betas=(0.9, 0.98), eps=1e-6)
    steps = images // batch
    warmup = max(1, min(200, steps // 10))
    seen = torch.zeros(model.vocab_size)
    tokens_of: dict[str, Tensor] = {}
    notes = {"images": str(images), "batch": str(batch), "peak": str(peak), "seed": str(seed)}
    begun, step, smooth, saved = time.monotonic(), 0, math.nan, 0
    for chunk in range(math.ceil(steps * batch / CHUNK)):
        pictures, captions = draw_pairs(CHUNK, keyed_seed("chunk", seed, chunk))
        for caption in captions:
            if caption not in tokens_of:
                tokens_of[caption] = tokenizer(caption)[0]
                seen[tokens_of[caption]] = 1.0
        inputs = prepare(torch.from_numpy(pictures))
        for start in range(0, CHUNK - batch + 1, batch):
            if step == steps:
                break
            rate = peak * min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.005)
            for group in optimiser.param_groups:
                group["lr"] = rate
            names = captions[start : start + batch]
            distinct = list(dict.fromkeys(names))
            place = {caption: index for index, caption in enumerate(distinct)}
            owner = torch.tensor([place[caption] for caption in names])
            tokens = torch.stack([tokens_of[caption] for caption in distinct])
            loss = contrastive(
                model.encode_image(inputs[start : start + batch]),
                encode_captions(model, tokens),
                owner,
                model.logit_scale.exp(),
            )
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            with torch.no_grad():
                model.logit_scale.clamp_(max=math.log(100.0))
            step += 1
            smooth = loss.item() if math.isnan(smooth) else 0.98 * smooth + 0.02 * loss.item()
        spent = time.monotonic() - begun
        left = spent / step * (steps - step)
        print(
            f"step {step}/{steps}  loss {smooth:.3f}  scale {model.logit_scale.exp().item():.1f}  "
            f"{step * batch / spent:.0f} images/s  {left / 60:.1f} min left",
            flush=True,
        )
        if step - saved >= save_every or step == steps:
            export(model, seen, out, notes | {"step": str(step)})
            saved = step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="weights file (.safetensors)")
    parser.add_argument("--config", type=Path, default=Path("grids/backbones/tiny-clip.json"))
    parser.add_argument("--images", type=int, default=800_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--peak", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=600, help="steps between two writes of the file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pretrain(
        options.config,
        options.out,
        options.images,
        options.batch,
        options.peak,
        options.seed,
        options.save_every,
    )


if __name__ == "__main__":
    main()
