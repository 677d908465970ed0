"""Merges a LoRA (low-rank adapter) of a CLIP into the weights that the LoRA changes.

A LoRA adds ``scale * B @ A`` to a matrix, with A (rank, inputs), B (outputs, rank) and ``scale = alpha / rank``
(https://arxiv.org/abs/2106.09685). With peft's ``use_rslora``, the scale is ``alpha / sqrt(rank)``.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bolt.clip.huggingface import VISION, to_huggingface
from bolt.clip.tensor_names import PROJECTION, TensorMismatch

_PAIR = re.compile(r"(?P<matrix>.+)\.(?P<side>lora_A|lora_B|lora_down|lora_up)(\.(?!(weight|bias)$)[^.]+)?(\.weight)?")
_CLIP_LORA = re.compile(r"(.+\.)?layer_(?P<block>\d+)\.(?P<matrix>[qkv]_proj|proj)\.w_lora_(?P<side>[AB])")
_ADAPTER = re.compile(r"(^|_)(lora|dora|lokr|hada|ia3)|oft_blocks")
_PATTERN = re.compile(r"(?:.+\.)?(rank|alpha)_pattern\.(.+)")
"""Setting of peft for single matrices: the end of a matrix's name follows, or a regular expression for it."""

_UNCHANGED = (True, False, "gaussian", "eva", "orthogonal")
"""Values of peft's ``init_lora_weights`` that leave the pre-trained weights as they are. Others, such as ``pissa`` and
``olora``, take a part out of the weights before the training."""

_MERGE = (
    "merge it into the weights with the program that made it (peft: model.merge_and_unload(), loralib: model.eval()), "
    "and save the model's state_dict()"
)


def holds_lora(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a checkpoint has the matrices of a LoRA or of a similar adapter."""
    return any(_ADAPTER.search(part) for name in tensors for part in name.lower().split(".")[-4:])


def adapter_kind(settings: Mapping[str, Any]) -> str:
    """Return the kind of adapter that the settings of peft state: ``LORA`` by default, or ``VERA`` and the like."""
    return str(settings.get("peft_type") or "LORA").upper()


def merge_lora(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], frozen: Mapping[str, Tensor], whole: bool
) -> tuple[dict[str, Tensor], str]:
    """Merge a LoRA into the tower in its own checkpoint, or into the pre-trained tower if the checkpoint has no tower.

    Args:
        tensors: the tensors of the checkpoint, by name.
        settings: numbers and words in the checkpoint: ``lora_alpha`` or ``alpha``, ``r``, ``use_rslora``, and
            ``rank_pattern`` and ``alpha_pattern`` of single matrices, whose keys may not be regular expressions.
        frozen: the tensors of the pre-trained image tower, by open_clip's names.
        whole: whether the checkpoint has a tower.

    Some programs, such as loralib, merge the LoRA into a matrix before they save the checkpoint. Such a matrix is not
    merged again. Weights that were trained without A and B, such as biases, replace the pre-trained ones.

    Returns:
        The merged weights with all other tensors of the checkpoint, and a note on what was merged.

    Raises ``TensorMismatch`` if the scale or a matrix is unknown, if the adapter is of another kind, or if it does not
    fit the tower. The message names programs that merge a LoRA.
    """
    if (kind := adapter_kind(settings)) != "LORA":
        raise _refused(f"its peft_type is {kind}")
    tensors, settings = _clip_lora(tensors, settings, frozen)
    pairs: dict[str, dict[str, Tensor]] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if found := _PAIR.fullmatch(name):
            side = "A" if found["side"] in ("lora_A", "lora_down") else "B"
            if side in pairs.setdefault(found["matrix"], {}):
                raise _refused("it holds several adapters")
            pairs[found["matrix"]][side] = tensor.float()
        else:
            rest[name] = tensor
    if twice := [f"{name}.out_proj" for name in pairs if f"{name}.out_proj" in pairs]:  # nn.MultiheadAttention
        raise _refused(f"releases of peft differ in whether they add the product of {twice[0]} once or twice")
    if unknown := [name for name in rest if holds_lora({name: rest[name]})]:
        raise _refused(f"it has other tensors than the A and B of linear layers, such as {unknown[0]}")
    alphas = {name: float(rest.pop(f"{name}.alpha")) for name in pairs if f"{name}.alpha" in rest}
    pretrained = _pretrained_alone(pairs, settings, frozen)
    without_prefix = {name.removeprefix("visual.").removeprefix(VISION): own for name, own in pretrained.items()}
    if not whole and (made := settings.get("init_lora_weights", True)) not in _UNCHANGED:
        raise _refused(f"its init_lora_weights is {made!r}, which changes the pre-trained weights, too")
    base = rest if whole else pretrained | _trained_whole(rest, pretrained)
    merged, merged_before, ranks, scales, targets = 0, 0, set[int](), set[float](), dict[str, dict[str, Tensor]]()
    for name, pair in pairs.items():
        if (target := _target(name, base, whole)) is None:
            if whole or _of_vision(name) or not any(map(_of_vision, pairs)):
                raise _refused(f"{name} is no matrix of this CLIP")
            continue  # a matrix of the text tower
        first = targets.setdefault(target, pair)
        if first.keys() != pair.keys() or not all(torch.equal(first[side], pair[side]) for side in pair):
            raise _refused("it holds several adapters")  # such as those of a teacher and a student
        weight, a, b = base[target], pair.get("A"), pair.get("B")
        fits = a is not None and b is not None and a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1] <= 2**16
        if a is None or b is None or not fits or (len(b), a.shape[1]) != weight.shape:
            raise _refused(f"the matrices A and B of {name} do not fit its weights {tuple(weight.shape)}")
        if _is_merged(weight, without_prefix.get(_target(name, without_prefix, False) or ""), b @ a):
            merged_before += 1
            continue
        scale = _scale(name, len(a), settings, alphas.get(name))
        base[target] = weight.float() + scale * (b @ a)
        merged, ranks, scales = merged + 1, ranks | {len(a)}, scales | {scale}
    if not merged + merged_before:
        raise _refused("it changes the text tower only")
    notes = [f"matrices of a LoRA that were merged into the weights already: {merged_before}"] * (merged_before > 0)
    if merged:
        listed = " and ".join(map(str, sorted(ranks))), " and ".join(f"{scale:g}" for scale in sorted(scales))
        into = "the weights beside it" if whole else "the pre-trained tower"
        notes.append(f"matrices of a LoRA of rank {listed[0]}, scale {listed[1]}, merged into {into}: {merged}")
    if left_out := len(pairs) - merged - merged_before:
        notes.append(f"matrices of the text tower that were left out: {left_out}")
    if not whole and (other := [name for name in rest if not _own_name(name, pretrained)]):
        notes.append(f"tensors outside the image tower that were left out: {len(other)}")
    if not whole and (stated := settings.get("base_model_name_or_path")):
        notes.append(f"it states that it was trained on {stated}")
    return base, "; ".join(notes)


def _trained_whole(rest: Mapping[str, Tensor], pretrained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the image tower's tensors in ``rest``, by the names that ``pretrained`` gives them.

    ``rest`` holds the tensors of the checkpoint that are no matrix A or B of the LoRA, such as trained biases.

    Raises ``TensorMismatch`` if ``rest`` has a tensor of an image tower for which ``pretrained`` has no counterpart.
    """
    if strange := [name for name in rest if _of_vision(name) and not _own_name(name, pretrained)]:
        raise _refused(f"{strange[0]} is no tensor of this CLIP")
    return {own: tensor for name, tensor in rest.items() if (own := _own_name(name, pretrained))}


def _own_name(name: str, pretrained: Mapping[str, Tensor]) -> str | None:
    """Return ``name`` without its prefix if ``pretrained`` has a tensor of that name; otherwise ``None``."""
    parts = name.split(".")
    return next((own for i in range(len(parts)) if (own := ".".join(parts[i:])) in pretrained), None)


def _is_merged(weight: Tensor, pretrained: Tensor | None, change: Tensor) -> bool:
    """Return whether ``weight - pretrained`` has about the direction of ``change``, which is ``B @ A``."""
    if pretrained is None or pretrained.shape != weight.shape:
        return False
    moved = weight.float() - pretrained.float()
    return bool((moved * change).sum() > 0.5 * moved.norm() * change.norm() > 0)


def _clip_lora(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], frozen: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Rename the tensors of a LoRA in the format of CLIP-LoRA (https://arxiv.org/abs/2405.18541) to peft's names.

    Any other LoRA is returned unchanged. CLIP-LoRA numbers the blocks of the text tower before those of the image
    tower, and its scale is ``alpha / sqrt(rank)``.
    """
    found = {name: match for name in tensors if (match := _CLIP_LORA.fullmatch(name))}
    stated = {name.rpartition(".")[2]: value for name, value in settings.items()}
    if len(found) < len(tensors) or stated.get("position") != "all" or stated.get("encoder") not in ("vision", "both"):
        return tensors, settings
    blocks = sum(name.endswith(".ln_1.weight") for name in frozen)
    of_text = 1 + max(int(match["block"]) for match in found.values()) - blocks if stated["encoder"] == "both" else 0
    renamed = {}
    for name, match in found.items():
        block = int(match["block"])
        tower = f"vision_model.encoder.layers.{block - of_text}" if block >= of_text else f"text_model.{block}"
        own = f"{tower}.self_attn.{'out_proj' if match['matrix'] == 'proj' else match['matrix']}"
        renamed[f"{own}.lora_{match['side']}"] = tensors[name]
    return renamed, {**settings, "use_rslora": True}


def _pretrained_alone(
    pairs: Mapping[str, Any], settings: Mapping[str, Any], frozen: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the pre-trained tower's tensors: by transformers' names if the LoRA uses these, else by open_clip's."""
    if PROJECTION in frozen and any(
        "self_attn" in name or ".fc" in name or "visual_projection" in name for name in pairs
    ):
        theirs = to_huggingface({name: tensor.detach().cpu() for name, tensor in frozen.items()})
        # A CLIPVisionModel of transformers 5 has no prefix. Nor has a CLIPTextModel, but peft states the class.
        of_another = re.search("Text|Siglip", str(settings.get("auto_mapping.base_model_class")))
        parts = {part for name in pairs for part in name.split(".")}
        bare = not of_another and parts.isdisjoint(("vision_model", "text_model", "visual_projection"))
        return {name.removeprefix(VISION): tensor for name, tensor in theirs.items()} if bare else theirs
    # A LoRA of open_clip's visual tower alone has no prefix; nor has one of the text tower, but peft states the class.
    alone = settings.get("auto_mapping.base_model_class") in ("VisionTransformer", "TimmModel")
    return {name if alone else f"visual.{name}": tensor.detach().cpu() for name, tensor in frozen.items()}


def _target(name: str, base: Mapping[str, Tensor], whole: bool) -> str | None:
    """Return the name in ``base`` of the matrix that a LoRA calls ``name``; ``None`` if ``base`` does not have it.

    With ``whole``, only the full ``name`` is looked up. Without it, the leading parts of ``name`` are dropped one by
    one until ``base`` has the rest.
    """
    parts = name.split(".")
    for start in range(1 if whole else len(parts)):
        stem = ".".join(parts[start:])
        for own in (f"{stem}.weight", f"{stem}.in_proj_weight"):
            if own in base:
                return own
    return None


def _of_vision(name: str) -> bool:
    return any(part in ("visual", "vision_model", "visual_projection") for part in name.split("."))


def _scale(matrix: str, rank: int, settings: Mapping[str, Any], alpha: float | None) -> float:
    """Return the factor of ``B @ A`` for a matrix. Raises ``TensorMismatch`` if the checkpoint does not state it."""
    stated = {name.rpartition(".")[2]: value for name, value in settings.items()}
    alphas = [name for name in settings if name.endswith("lora_alpha")] or [
        name  # that of CLIP-LoRA; other settings, such as that of mixup, are not beside the rank
        for name in settings
        if name.endswith("alpha") and rank in [settings.get(name.removesuffix("alpha") + r) for r in ("r", "rank")]
    ]
    patterns = [found for name in settings if (found := _PATTERN.fullmatch(name))]
    if not all(re.fullmatch(r"[\w.]+", each[2]) for each in patterns):
        raise _refused("it states the scales of its matrices by patterns that are not read here")
    fitting = [each for each in patterns if re.fullmatch(rf"(.+\.)?{each[2]}", matrix)]
    own, ranks = ({settings[each[0]] for each in fitting if each[1] == kind} for kind in ("alpha", "rank"))
    if len(own) > 1:
        raise _refused(f"it states several scales for {matrix}")
    if alpha is None and not own and len(own := {settings[name] for name in alphas}) > 1:
        raise _refused(f"it states several scales: {', '.join(alphas)}")
    alpha = next(iter(own), None) if alpha is None else alpha
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise _refused("neither the file nor an adapter_config.json beside the file states its scale")
    if rank not in (ranks or (stated.get("r", rank),)):
        raise _refused(f"it states another rank for {matrix} than {rank}, the rank of its matrices")
    if stated.get("fan_in_fan_out") is True:
        raise _refused("its matrices are stored transposed (fan_in_fan_out)")
    return alpha / (math.sqrt(rank) if stated.get("use_rslora") is True else rank)


def _refused(why: str) -> TensorMismatch:
    return TensorMismatch(f"this is a LoRA (a low-rank adapter), not a whole tower, and {why}; {_MERGE}")
