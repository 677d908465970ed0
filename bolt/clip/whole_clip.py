"""Loads a whole CLIP, both towers, from a file of weights into open_clip's model."""

import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from bolt.clip.checkpoint_reading import read_checkpoint
from bolt.clip.huggingface import (
    TEXT,
    TEXT_HEADS,
    VISION,
    heads_and_epsilon,
    shape_from_config,
    whole_from_huggingface,
)
from bolt.clip.input_size import check_preprocessing
from bolt.clip.lora import holds_lora
from bolt.clip.siglip import PROBE, siglip_from_huggingface
from bolt.clip.tensor_names import TensorMismatch, check_numbers, check_tensors, holds_again
from bolt.util.json_text import read_json

_NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size", "attn_mask", "position_ids", "n_averaged")
"""Endings of the names of constants that some programs store beside the weights."""

_POSITIONS = "embeddings.position_embedding.weight"
"""End of the name of a tensor that each tower of a CLIP or SigLIP of transformers has."""

_BESIDE_TOWERS = ("visual_projection.weight", "text_projection.weight", "logit_scale", "logit_bias")
"""Names of the tensors that such a model has beside its towers."""

_PREPROCESSING = {"resize_mode": "resize", "interpolation": "interpolation", "mean": "mean", "std": "std"}
"""open_clip's names of preprocessing steps -> the arguments of :meth:`bolt.clip.backbone.Backbone.from_open_clip`."""

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""The files in which transformers states the preprocessing. Since version 5, ``CLIPProcessor`` writes the second, with
the preprocessing under the key ``image_processor``."""

_PHOTO = 1125
"""The token of "photo" in CLIP's vocabulary."""

_TOKENS = 49408
"""The number of tokens in CLIP's vocabulary."""

_FOLDER_OF_THEIR_OWN = "keep these weights in a folder of their own"

_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's number of an interpolation -> the interpolation's name. transformers states the number."""


class UnknownPreprocessing(ValueError):
    """A backbone cannot preprocess images in the way that is stated for the weights."""


class UnknownActivation(ValueError):
    """The activation that a file of weights was trained with is unknown, or statements about it are contradictory."""


def model_name(architecture: str) -> str:
    """Let open_clip read a model's configuration from its file; return the name by which open_clip builds the model.

    open_clip keeps one configuration for each name, the last one that it read. A user's ``ViT-B-32.json`` may have
    replaced the configuration of open_clip's own model. So the file of such a model is read again too.

    ``architecture``: a model's name, or the path of a configuration (``.json``). Raises ``ValueError`` if open_clip
    ignores the file, because one of its parts is missing, or if its tokenizer draws tokens at random.
    """
    import open_clip  # takes seconds to import

    own = Path(open_clip.__file__).parent / "model_configs" / f"{architecture}.json"
    if Path(architecture).is_dir() and not own.exists():
        what = "name a model of open_clip, such as ViT-B-32, or a model configuration in JSON; weights may be a folder"
        raise ValueError(f"{architecture} is a folder, not an architecture: {what}")
    file = Path(architecture) if architecture.endswith(".json") else own
    config = dict(read_json(file)) if file != own else {}
    if file != own and (missing := {"embed_dim", "vision_cfg", "text_cfg"} - {*config}):
        raise ValueError(f"{file} is no model configuration of open_clip: it has no {', '.join(sorted(missing))}")
    if mask := re.search("'reduction_mask': '(simple|random|shuffle)'", str(config.get("text_cfg"))):
        what = f"{file} sets reduction_mask to {mask[1]}, which draws the tokens of a long text at random in every run"
        raise ValueError(f"{what}. That is for training; without the entry, the end of a long text is cut off instead")
    open_clip.add_model_config(file)
    return architecture if file == own else file.stem


def clip_tokenizer(model: str, weights: Path | None = None) -> Callable[[list[str]], Tensor]:
    """Return the function that cuts texts into the tokens of a model that open_clip knows by this name.

    The model's configuration decides. open_clip alone gives SigLIP's tokens even to a model with CLIP's vocabulary if
    it has "siglip" in its name.

    ``weights``: a file of weights or its folder. As in open_clip, a tokenizer of transformers there is used if
    ``open_clip_config.json`` is there, too.
    """
    import open_clip  # takes seconds to import

    text: dict[str, Any] = (open_clip.get_model_config(model) or {}).get("text_cfg") or {}
    length = text.get("context_length", open_clip.tokenizer.DEFAULT_CONTEXT_LENGTH)
    options = {"context_length": length, **text.get("tokenizer_kwargs", {})}
    folder = weights if weights is None or weights.is_dir() else weights.parent
    files = ("open_clip_config.json", "tokenizer_config.json")
    tokenizer: Callable[[list[str]], Tensor]
    if not text.get("hf_tokenizer_name") and text.get("vocab_size", _TOKENS) >= _TOKENS:
        tokenizer = open_clip.SimpleTokenizer(**options)
    elif text.get("hf_tokenizer_name") and folder and all((folder / name).is_file() for name in files):
        mode = text.get("tokenizer_mode")
        tokenizer = open_clip.tokenizer.HFTokenizer(str(folder), tokenizer_mode=mode, **options)
    else:
        tokenizer = open_clip.get_tokenizer(model)
    return tokenizer


def clip_from_file(
    architecture: str, file: Path, quick_gelu: bool, say: Callable[[str], object] = warnings.warn
) -> nn.Module:
    """Build a model of open_clip, and load weights from a file in any known format and precision.

    Args:
        architecture: a name that open_clip knows.
        quick_gelu: whether the towers use QuickGELU, see :func:`file_activation`.
        say: called with a text if the file has tensors outside the CLIP, such as a classifier.

    Raises:
        bolt.clip.checkpoint_files.UnreadableCheckpoint: for a file that cannot be read.
        TensorMismatch: if the tensors do not fit this architecture, or some are quantised, NaN or infinite, or if a
            tokenizer of transformers beside the file has other tokens than CLIP's, which the model would be given.
    """
    import open_clip  # takes seconds to import

    found = dict(read_checkpoint(file).tensors)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # open_clip warns of random weights, which are replaced below
    try:
        model = cast(nn.Module, open_clip.create_model(
            architecture, force_quick_gelu=quick_gelu, device="cpu",
            pretrained_text=False,  # otherwise it would fetch other weights for a text tower of transformers
        ))  # fmt: skip
    finally:
        logging.disable(before)
    config, folder = open_clip.get_model_config(architecture), file if file.is_dir() else file.parent
    if not config["text_cfg"].get("hf_tokenizer_name") and not config["text_cfg"].get("hf_model_name"):
        _check_vocabulary(folder)
    _check_heads(folder, architecture, config)
    own = model.state_dict()
    tensors, outside = _whole(found, next(name for name in own if name.startswith("visual.")), file)
    if outside := [name for name in outside if not name.startswith("optim")]:
        shown = ", ".join(outside[:3]) + ", ..." * (len(outside) > 3)
        say(f"{file}: tensors outside the CLIP that were left out: {len(outside)} ({shown})")
    if "positional_embedding" in own:  # open_clip's force_custom_text adds "text."
        tensors = {name.removeprefix("text."): tensor for name, tensor in tensors.items()}
    elif "positional_embedding" in tensors:
        tensors = dict(open_clip.model.convert_to_custom_text_state_dict(tensors))
    if "logit_bias" not in own:  # a training with SigLIP's loss adds it to any CLIP; it is equal for all classes
        tensors.pop("logit_bias", None)
    for name in ("logit_scale", "logit_bias"):  # (1,) in some files
        if name in tensors and name in own and tensors[name].numel() == 1:
            tensors[name] = tensors[name].reshape(own[name].shape)
    check_tensors(tensors, {name: tuple(tensor.shape) for name, tensor in own.items()}, of=f"a {architecture}")
    check_numbers(tensors, own)
    model.load_state_dict(tensors)
    return model


def _check_heads(folder: Path, architecture: str, config: Mapping[str, Any]) -> None:
    """Raise ``TensorMismatch`` if a configuration in a folder states other heads or another epsilon than ``config``.

    No tensor's shape shows them. The activation is compared elsewhere. What describes no CLIP is ignored.
    """
    beside = next(filter(Path.is_file, (folder / "open_clip_config.json", folder / "config.json")), folder)
    stated = own = heads_and_epsilon(config)
    with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        read = dict(read_json(beside))
        if "model_cfg" in read:
            stated = heads_and_epsilon(read["model_cfg"])
        else:
            shape, text = shape_from_config(read), read.get("text_config") or {"num_attention_heads": own[2]}
            stated = shape.heads, shape.epsilon, int(text.get("num_attention_heads", TEXT_HEADS))
    whats = ("heads of the image tower", "epsilon of the image tower", "heads of the text tower")
    for what, said, built in zip(whats, stated, own, strict=True):
        if not math.isclose(said, built):
            contradiction = f"{what}: {beside} states {said}, but {architecture} has {built}"
            raise TensorMismatch(f"{contradiction}; if it belongs to another model, {_FOLDER_OF_THEIR_OWN}")


def _check_vocabulary(folder: Path) -> None:
    """Raise ``TensorMismatch`` if a folder has a tokenizer with other tokens than CLIP's, such as one for Korean."""
    for file in filter(Path.is_file, (folder / "vocab.json", folder / "tokenizer.json")):
        tokens = None  # if the file cannot be read, or is no tokenizer's
        with suppress(OSError, ValueError, KeyError, TypeError):
            found: Any = read_json(file)
            tokens = dict(found if file.name == "vocab.json" else found["model"]["vocab"])
        if tokens is not None and tokens.get("photo</w>") != _PHOTO:
            what = f"{file} has other tokens than CLIP's, and the text tower would be given CLIP's"
            raise TensorMismatch(f"{what}; if it belongs to another model, {_FOLDER_OF_THEIR_OWN}")


def file_activation(file: Path, architecture: str, asked: bool | None = None) -> bool:
    """Return whether the weights in a file need QuickGELU.

    Args:
        file: the file of weights. ``open_clip_config.json`` or ``config.json`` beside the file states the activation.
            An archive in OpenAI's own form needs QuickGELU.
        architecture: a model's name, or the path of a configuration. The ending ``-quickgelu`` of a name states
            QuickGELU. In a configuration, the key ``quick_gelu`` states the activation.
        asked: the user's statement; ``None`` if there is none.

    Raises ``UnknownActivation`` if nothing states the activation, or if the user's statement contradicts another.
    """
    stated, said_by = _stated(file, architecture)
    if stated is None and asked is None:
        raise UnknownActivation(
            f"the activation of the weights {file} is not known, and a wrong activation gives wrong features without "
            "an error: state quick_gelu=True or --quick-gelu for OpenAI's weights and models fine-tuned from them; "
            "state quick_gelu=False or --gelu for LAION's and most others"
        )
    if stated is not None and asked not in (None, stated):
        right = "quick-gelu" if stated else "gelu"
        what = f"{said_by} says that the weights {file} were trained with {right}"
        raise UnknownActivation(f"{what}: state quick_gelu={stated} or --{right}, or neither")
    return bool(stated if asked is None else asked)


def preprocessing(config: Mapping[str, Any], model: str, weights: str | Path) -> dict[str, Any]:
    """Return the preprocessing that the weights need: ``resize``, ``interpolation``, ``mean`` and ``std``.

    A value that equals CLIP's own is left out. For a pre-trained tag, open_clip has the values. For a file, they are in
    ``open_clip_config.json`` beside the file or, without it, in the configuration of a transformers processor. If
    neither exists, the values that all pre-trained tags of the architecture share are used. A SigLIP of an architecture
    without a tag gets the values of ViT-B-16-SigLIP. open_clip itself takes OpenAI's values for any file, which is
    wrong for SigLIP.

    Args:
        config: open_clip's configuration of the model.
        weights: a tag of open_clip, or a file.

    Raises ``UnknownPreprocessing`` if a file cannot be read or states values that a backbone cannot have.
    """
    import open_clip  # takes seconds to import

    stated, listed = dict(config.get("preprocess_cfg") or {}), open_clip.list_pretrained_tags_by_model(model)
    folder = Path(weights) if Path(weights).is_dir() else Path(weights).parent
    beside, *processors = (folder / name for name in ("open_clip_config.json", *_PROCESSORS))
    processor = next(filter(Path.is_file, processors), beside)
    try:
        if weights in listed:
            stated |= open_clip.get_pretrained_cfg(model, str(weights))
        elif beside.is_file():
            stated |= dict(read_json(beside)).get("preprocess_cfg") or {}
            check_preprocessing(stated)
        elif processor.is_file():
            said = dict(read_json(processor))
            side = (config.get("vision_cfg") or {}).get("image_size", 224)
            stated |= _processor(said.get("image_processor", said), side)
            check_preprocessing(stated)
        elif listed:
            first, *others = [open_clip.get_pretrained_cfg(model, tag) for tag in listed]
            stated |= {name: value for name, value in first.items() if all(tag.get(name) == value for tag in others)}
        elif "siglip" in str(config.get("vision_cfg")):
            stated = open_clip.get_pretrained_cfg("ViT-B-16-SigLIP", "webli") | stated
    except (OSError, TypeError, ValueError, AttributeError) as error:
        source = beside if beside.is_file() else processor
        raise UnknownPreprocessing(
            f"{source} cannot be used: {error}; correct it, or remove it to take CLIP's preprocessing"
        ) from None
    found = {field: stated[name] for name, field in _PREPROCESSING.items() if stated.get(name)}
    own = {
        "resize": "shortest",
        "interpolation": "bicubic",
        "mean": open_clip.OPENAI_DATASET_MEAN,
        "std": open_clip.OPENAI_DATASET_STD,
    }
    triples = {field: tuple(value) if field in ("mean", "std") else value for field, value in found.items()}
    return {field: value for field, value in triples.items() if value != own[field]}


def _processor(config: Mapping[str, Any], tower_side: object) -> dict[str, Any]:
    """Translate the configuration of an image processor of transformers into open_clip's names for preprocessing.

    ``tower_side``: the side of the tower's images. Raises ``ValueError`` for steps that a backbone does not have.
    """
    size, crop = (
        {"": side} if isinstance(side, int) else side or {} for side in map(config.get, ("size", "crop_size"))
    )
    squash = {*size} == {"height", "width"}
    crops = config.get("do_center_crop", not squash)
    sides = {*size.values(), *(crop.values() if crops else ())}
    other = {*size} - {"", "height", "width", "shortest_edge"}  # such as longest_edge
    if not config.get("do_resize", True) or other or len(sides) > 1 or not (squash or crops):
        raise ValueError("it does not resize images to the square that the tower takes")
    if isinstance(tower_side, int) and sides - {tower_side}:
        raise ValueError(f"it makes images of {sides.pop()} pixels, and the tower takes {tower_side}")
    mean, std = (config.get(f"image_{name}") or () for name in ("mean", "std"))
    if not config.get("do_normalize", True):
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    factor = 255 * (config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0)
    if not math.isclose(factor, 1):  # mean and std are stated for pixels in another range than [0, 1]
        mean, std = (tuple(value / factor for value in values) for values in (mean, std))
    resample = config.get("resample", 3)
    return {
        "resize_mode": "squash" if squash else "shortest",
        "interpolation": _FILTERS.get(resample, resample),
        "mean": mean,
        "std": std,
    }


def _stated(file: Path, architecture: str) -> tuple[bool | None, str]:
    """Return whether the model uses QuickGELU, and what states this; ``None`` and ``""`` if nothing states it."""
    folder = file if file.is_dir() else file.parent
    with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        if (config := folder / "open_clip_config.json").is_file():
            return bool(read_json(config)["model_cfg"].get("quick_gelu", False)), str(config)
        if (config := folder / "config.json").is_file():
            stated = dict(read_json(config))
            if stated.get("model_type") == "siglip":
                return False, str(config)
            return shape_from_config(stated).activation == "quick_gelu", str(config)
    if read_checkpoint(file).of_openai:
        return True, "the form of the file, that of OpenAI's own archives,"
    if architecture.endswith("-quickgelu"):
        return True, "the name of the architecture"
    with suppress(OSError, ValueError):
        model: Any = read_json(Path(architecture)) if architecture.endswith(".json") else {}
        if isinstance(model, dict) and "quick_gelu" in model:
            return bool(model["quick_gelu"]), architecture
    return None, ""


def _whole(tensors: dict[str, Tensor], first: str, file: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of the CLIP in a checkpoint, by open_clip's names, and the names of all other tensors.

    ``first``: open_clip's name of a tensor of this architecture. If a prefix precedes this name in the checkpoint, the
    prefix is removed from all names.
    """
    if holds_lora(tensors):
        raise TensorMismatch(f"{file} is a LoRA, not a whole CLIP: adopt it as a source, or merge it first")
    theirs = [name.removesuffix(VISION + _POSITIONS) for name in tensors if name.endswith(VISION + _POSITIONS)]
    outside: list[str] = []
    if len(theirs) == 1 and f"{theirs[0]}{TEXT}{_POSITIONS}" in tensors:
        inner, outside = _inside(tensors, theirs[0])
        outside += [theirs[0] + n for n in inner if not n.startswith((VISION, TEXT)) and n not in _BESIDE_TOWERS]
        tensors = siglip_from_huggingface(inner) if PROBE in inner else whole_from_huggingface(inner)
    found = [name.removesuffix(first) for name in tensors if name.endswith(first)]
    whole = [prefix for prefix in found if f"{prefix}logit_scale" in tensors]  # the others are image towers alone
    for prefix in [*whole, *found][:1]:
        towers = [f"{each}visual." for each in found]
        if holds_again(tensors, f"{prefix}visual.", towers) and holds_again(tensors, prefix, whole):
            found = [prefix]
    if len(found) != 1:
        held = (
            "several CLIPs: save one of them alone"
            if found or len(theirs) > 1
            else "one tower of Hugging Face's CLIP, and a backbone needs both towers"
            if theirs
            else f"no whole CLIP: no tensor is called {first}. An image tower alone is no backbone"
        )
        raise TensorMismatch(f"{file} holds {held}")
    inner, more = _inside(tensors, found[0])
    return {name: tensor for name, tensor in inner.items() if not name.endswith(_NO_WEIGHTS)}, outside + more


def _inside(tensors: Mapping[str, Tensor], prefix: str) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors whose names begin with a prefix, without the prefix, and the names of the others."""
    inner = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return inner, [name for name in tensors if not name.startswith(prefix)]
