"""Fetches the pre-trained weights of a backbone before a run, and loads a backbone as a frozen CLIP.

Loading checks the activation and the sizes. Weights that were fetched are read from this machine, without a network.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from orchestrator.catalog import BackboneEntry, backbone_ref, missing_weights
from orchestrator.util.errors import UserError, explained, one_line, shorten

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor, nn

    from bolt.clip.backbone import Backbone


def fetch_weights(entry: BackboneEntry, console: Console, *, where: str = "", instead: Sequence[str] = ()) -> None:
    """Fetch the weights of a backbone from the hub or from open_clip's list, unless they are in the cache.

    Args:
        where: the option or file that names the backbone, for the error.
        instead: further lines for the hint of the error, such as alternatives to fetching the weights.

    Raises ``UserError`` if the weights or the tokenizer cannot be fetched, or if a file of the catalog's entry does not
    exist.
    """
    if absent := missing_weights(entry):
        raise absent
    if entry.trainable_text and not entry.weights.is_fetched:
        return
    import open_clip
    from huggingface_hub import constants, hf_hub_download

    try:
        # without a network, the hub logs a warning for each of its twelve attempts
        with console.status(f"fetching the weights of {entry.name}"), _log_level("huggingface_hub", logging.ERROR):
            if entry.weights.hub:
                hf_hub_download(entry.weights.hub, str(entry.weights.file))
            elif entry.weights.is_fetched:
                config = open_clip.get_pretrained_cfg(entry.architecture, str(entry.weights.pretrained))
                open_clip.download_pretrained(config)
            load_tokenizer(entry)  # some tokenizers, such as SigLIP's, are files of the hub
    except UserError:
        raise
    except Exception as error:  # the hub, HTTP libraries and open_clip raise errors of many classes
        cause: BaseException = error
        while (deeper := cause.__cause__ or cause.__context__) is not None:
            cause = deeper  # the connection's own error says more than the error that the hub makes of it
        reason = shorten(" ".join(str(cause).split()) or type(error).__name__)
        reason += "; HF_HUB_OFFLINE is set" if constants.is_offline_mode() else ""
        what = f"the weights {entry.weights.hub or entry.weights.pretrained} of backbone {entry.name} cannot be fetched"
        copy = "or copy ~/.cache/huggingface and ~/.cache/clip of another machine"
        hint = f"run the command once where the network reaches huggingface.co, {copy}"
        other = "or add a file of weights: python -m orchestrator backbones add --help"
        raise UserError(f"{what}: {reason}", where=where, hint="\n  ".join((hint, other, *instead))) from None


def has_weights(entry: BackboneEntry) -> bool:
    """Return whether a backbone's weights are on this machine, as a file or in open_clip's cache."""
    if (path := entry.weights.path) is not None:
        return path.is_file() and missing_weights(entry) is None
    import open_clip
    from huggingface_hub import try_to_load_from_cache

    config = open_clip.get_pretrained_cfg(entry.architecture, str(entry.weights.pretrained)) or {}
    repository, file = os.path.split(config.get("hf_hub", ""))
    if not repository:
        return Path("~/.cache/clip", os.path.basename(config.get("url", ""))).expanduser().is_file()
    file = file or "open_clip_pytorch_model.bin"
    safe = file.removesuffix(".bin").removesuffix(".pth").replace("_pytorch_model", "_model") + ".safetensors"
    return any(isinstance(try_to_load_from_cache(repository, name), str) for name in (safe, file))


def load_backbone(
    entry: BackboneEntry, device: str, *, swapped: bool = False, keep_text: bool = True,
    say: Callable[[str], object] = lambda note: None,
) -> Backbone:  # fmt: skip
    """Build the open_clip model of a catalog entry, load its weights and freeze it on ``device``.

    Args:
        entry: the entry of the catalog, or a copy with the activation swapped (GELU, QuickGELU).
        swapped: whether the activation differs on purpose from the activation that the weights were trained with.
        keep_text: whether to keep the text side in memory. If not, the model is loaded again whenever prompts are
            encoded, and encoding raises ``UserError`` if the weights are gone or have changed.
        say: called with a text if a file of weights has tensors outside the CLIP.

    Raises:
        UserError: if the weights are not on this machine or do not fit the architecture, or if the entry's sizes or
            activation are wrong. Without this check, OpenAI's weights would run with the wrong activation and lose
            several points of accuracy.
    """
    if absent := missing_weights(entry):
        raise absent
    from bolt.clip.backbone import Backbone
    from bolt.clip.tower_shape import UnsupportedTower

    if entry.weights.path is None:
        _check_listed(entry, swapped)
    text = TextSide(entry, say)
    load_again = None if keep_text else text.load
    with explained(UnsupportedTower, what=f"backbone {entry.name}"):
        backbone = Backbone.from_open_clip(
            text.load(), text.tokenize, entry.name, given_away=True, load_again=load_again,
            mean=entry.mean, std=entry.std, resize=entry.resize, interpolation=entry.interpolation,
        )  # fmt: skip
    built, stated = backbone.activation, "quick_gelu" if entry.quick_gelu else "gelu"
    if built != stated:
        what = f"backbone {entry.name} was built with {built}, but its catalog entry says {stated}"
        raise UserError(what, hint="set quick_gelu to the activation that the weights were trained with")
    for name in ("image_size", "patch", "width", "layers", "embed_dim"):
        size = getattr(backbone.tower.shape, "patch_size" if name == "patch" else name)
        if size != getattr(entry, name):
            what = f"backbone {entry.name} has {name} {size}, its catalog entry says {getattr(entry, name)}"
            raise UserError(what, hint="`backbones add` fills an entry from the model itself")
    return backbone.to(device)


class TextSide:
    """A backbone's tokenizer, and its whole open_clip model, which is loaded whenever prompts are encoded."""

    def __init__(self, entry: BackboneEntry, say: Callable[[str], object] = lambda note: None) -> None:
        self._entry, self._loaded_from, self._say = entry, backbone_ref(entry), say

    def load(self) -> nn.Module:
        """Return the open_clip model. Raises ``UserError`` if the weights are gone, have changed or do not fit."""
        entry = self._entry
        if absent := missing_weights(entry):
            raise absent
        if backbone_ref(entry) != self._loaded_from:
            what = f"the weights of backbone {entry.name} changed since they were loaded"
            raise UserError(what, hint="run the same command again")
        import open_clip

        from bolt.clip.whole_clip import clip_from_file

        architecture, file = _architecture(entry), entry.weights.path
        with _loading(entry, architecture):
            if file is not None:
                if not file.is_file():
                    raise _loading_error(entry, architecture, f"{file} does not exist")
                return clip_from_file(architecture, file, entry.quick_gelu, self._say)
            model = open_clip.create_model(
                architecture, pretrained=entry.weights.pretrained, force_quick_gelu=entry.quick_gelu, device="cpu"
            )
        return cast("nn.Module", model)

    def tokenize(self, prompts: list[str]) -> Tensor:
        """Return the token numbers of prompts, (P, context length)."""
        return self._tokenizer(prompts)

    @cached_property
    def _tokenizer(self) -> Callable[[list[str]], Tensor]:
        with _hub_offline():
            return load_tokenizer(self._entry)


def load_tokenizer(entry: BackboneEntry) -> Callable[[list[str]], Tensor]:
    """Return the function that cuts prompts into tokens. Raises ``UserError`` if its files are not on this machine."""
    import open_clip

    from bolt.clip.whole_clip import clip_tokenizer

    architecture = _architecture(entry)
    try:
        with _log_level(None, logging.CRITICAL), warnings.catch_warnings(action="ignore"):
            return clip_tokenizer(architecture, entry.weights.path)
    except Exception as error:  # the hub, sentencepiece and transformers raise errors of many classes
        name = open_clip.get_model_config(architecture)["text_cfg"].get("hf_tokenizer_name")
        code = f"import open_clip; open_clip.tokenizer.HFTokenizer('{name}')"
        what = f"the tokenizer of backbone {entry.name} is not on this machine: {one_line(error, 160)}"
        hint = f'fetch it once where the network reaches huggingface.co: python -c "{code}"'
        raise UserError(what, hint=hint) from None


def tag_uses_quick_gelu(architecture: str, tag: str) -> bool | None:
    """Return whether listed weights need QuickGELU, by open_clip's list or the model; ``None`` for unlisted weights."""
    import open_clip

    listed, model = open_clip.get_pretrained_cfg(architecture, tag), open_clip.get_model_config(architecture)
    return bool(listed.get("quick_gelu") or model.get("quick_gelu")) if listed else None


def _architecture(entry: BackboneEntry) -> str:
    """Return the name by which open_clip knows the architecture of a backbone. Raises ``UserError`` for a bad file."""
    from bolt.clip.whole_clip import model_name

    with explained(OSError, ValueError, what=f"backbone {entry.name} cannot be built"):
        return model_name(str(entry.architecture_path or entry.architecture))


def _check_listed(entry: BackboneEntry, swapped: bool) -> None:
    """Raise ``UserError`` if the catalog entry states another activation or resizing than open_clip's list of weights.

    If the activation is ``swapped`` on purpose, only the resizing is compared.
    """
    import open_clip

    architecture, weights = _architecture(entry), str(entry.weights.pretrained)
    listed = open_clip.get_pretrained_cfg(architecture, weights) or {}
    known = {"resize": listed.get("resize_mode"), "interpolation": listed.get("interpolation")}
    if not swapped:
        known["quick_gelu"] = tag_uses_quick_gelu(architecture, weights)
    for name, value in known.items():
        if value is not None and value != getattr(entry, name):
            shown, stated = str(value).lower(), str(getattr(entry, name)).lower()
            found = f"open_clip lists {name} {shown} for the weights {weights}"
            what = f"backbone {entry.name}: {found}, but its catalog entry says {stated}"
            raise UserError(what, hint=f"write {name}: {shown}")


def _loading_error(entry: BackboneEntry, architecture: str, reason: str) -> UserError:
    """Return the error for weights that are not on this machine, or for a file that open_clip cannot load."""
    if not entry.weights.is_fetched:
        return UserError(f"backbone {entry.name} cannot be built from {entry.architecture}: {reason}")
    if name := entry.weights.hub:
        fetch = f"import huggingface_hub; huggingface_hub.hf_hub_download('{name}', '{entry.weights.file}')"
    else:
        name = entry.weights.pretrained
        fetch = f"import open_clip; open_clip.create_model('{architecture}', pretrained='{name}')"
    what = f"the weights {name} of backbone {entry.name} are not on this machine, and cells fetch nothing"
    return UserError(f"{what}: {reason}", hint=f'fetch them once: python -c "{fetch}"')


@contextlib.contextmanager
def _loading(entry: BackboneEntry, architecture: str) -> Iterator[None]:
    """Turn errors of the block into a ``UserError`` about the backbone's weights, and silence logs and warnings.

    A ``MemoryError`` is passed on. The logs and warnings add nothing to the error: open_clip warns of random
    initialisation before it loads a local file, and it raises every error that it logs.
    """
    from bolt.clip.checkpoint_files import UnreadableCheckpoint
    from bolt.clip.tensor_names import TensorMismatch  # imports torch

    try:
        with _hub_offline(), _log_level(None, logging.CRITICAL), warnings.catch_warnings(action="ignore"):
            yield
    except (MemoryError, UserError):
        raise
    except (UnreadableCheckpoint, TensorMismatch) as error:
        where = "" if str(entry.weights.path) in str(error) else str(entry.weights.path)
        hint = "name the architecture that the weights were made for" if isinstance(error, TensorMismatch) else ""
        what = f"the weights of backbone {entry.name} cannot be used: {error}"
        raise UserError(what, where=where, hint=hint) from None
    except Exception as error:
        # For a wrong file, open_clip, torch, pickle and safetensors raise errors of many classes.
        raise _loading_error(entry, architecture, one_line(error, 160)) from None


@contextlib.contextmanager
def _hub_offline() -> Iterator[None]:
    """Make the hub's library fail at once instead of fetching, during the block.

    Setting ``HF_HUB_OFFLINE`` would have no effect, because the library reads it only when it is imported.
    """
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def _log_level(logger: str | None, level: int) -> Iterator[None]:
    """Hide the records below ``level`` of a logger during the block. The name ``None`` means the root logger."""
    found = logging.getLogger(logger)
    before = found.level
    found.setLevel(level)
    try:
        yield
    finally:
        found.setLevel(before)
