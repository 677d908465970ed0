"""Makes the catalog entry of a backbone: sizes, activation and cost, from open_clip's model configuration."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from bolt.clip.checkpoint_files import UnreadableCheckpoint, checkpoint_files, checkpoint_name, weights_file
from bolt.clip.feature_tower import FeatureTower, TimmTower, image_tower_of
from bolt.clip.huggingface import open_clip_config
from bolt.clip.siglip import siglip_config
from bolt.clip.tower import ImageTower
from bolt.clip.tower_shape import UnsupportedTower, text_shape_from_open_clip
from bolt.clip.whole_clip import UnknownActivation, UnknownPreprocessing, file_activation, preprocessing
from bolt.util.json_text import read_json
from orchestrator.artifacts.load_backbone import load_backbone, load_tokenizer, tag_uses_quick_gelu
from orchestrator.catalog import BackboneEntry
from orchestrator.catalog.backbone_entry import Weights
from orchestrator.catalog.validation import as_key, key_problem
from orchestrator.models.adoption import HUB, fetch_repository
from orchestrator.util.errors import UserError, explained, unknown_name

QUICK = "-quickgelu"
"""Suffix of open_clip's names for models with QuickGELU. A catalog entry has the field ``quick_gelu`` instead."""

_NO_CONFIG = (KeyError, TypeError, ValueError, RuntimeError, AssertionError)
"""Errors of open_clip for a configuration that it cannot build."""

_DRAWS = frozenset({"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_", "zero_", "fill_", "copy_"})

_SMALL_VISION = {"image_size": 8, "patch_size": 8, "width": 8, "head_width": 8, "layers": 1}
_SMALL_TEXT = {"context_length": 8, "vocab_size": 8, "width": 8, "heads": 1, "layers": 1}


def backbone_entry(
    architecture: str,
    pretrained: str | None = None,
    file: Path | None = None,
    name: str | None = None,
    quick_gelu: bool | None = None,
    say: Callable[[str], object] = lambda note: None,
) -> BackboneEntry:
    """Return a backbone's catalog entry. Weights in a file are loaded once, to check that they fit.

    Args:
        architecture: a model name of open_clip, or the path of a model configuration in JSON.
        pretrained: a tag of open_clip; ``None`` if ``file`` is given.
        file: a file with the weights of a whole CLIP in open_clip's layout; ``None`` if ``pretrained`` is given.
        name: the key in the catalog; ``None`` makes one from the architecture and the tag or file.
        quick_gelu: whether the activation is QuickGELU; ``None`` if the tag, or a configuration beside the file, says
            which activation it is.
        say: called with a text if the file has tensors outside the CLIP.

    Raises ``UserError`` for an unknown model or tag (naming the nearest), a tower that cannot be adapted, an
    activation that is unknown or contradicts the weights, and a file that does not fit.
    """
    if (pretrained is None) == (file is None):
        hint = "give --pretrained TAG or --file PATH, or a folder or hf:OWNER/NAME alone"
        raise UserError("a backbone needs weights of open_clip or a file", hint=hint)
    model, config = _architecture(architecture, pretrained)
    tower = meta_tower(config, architecture)
    shape = tower.shape
    if pretrained is not None:
        tags = open_clip.list_pretrained_tags_by_model(model)
        if pretrained not in tags:
            raise unknown_name(f"pre-trained tag of {model}", pretrained, tags, where="--pretrained")
        weights, words = Weights(pretrained=pretrained), pretrained
        known = tag_uses_quick_gelu(model, pretrained)
        if quick_gelu not in (None, known):
            what = f"open_clip says that these weights were trained with {'quick_gelu' if known else 'gelu'}"
            raise UserError(what, where="--quick-gelu/--gelu")
        quick_gelu = known
    if file is not None:
        file = _weights_file(file)
        weights, words = Weights(file=str(file.absolute())), checkpoint_name(file)
        with explained(UnknownActivation, where="--quick-gelu/--gelu"), explained(UnreadableCheckpoint, where="--file"):
            quick_gelu = file_activation(file, architecture, quick_gelu)
    with explained(UnknownPreprocessing):
        how = preprocessing(config, model, str(pretrained or file))
    name = name or f"{Path(model).stem}-{words}".lower()
    if wrong := key_problem(name):
        raise UserError(wrong, where="--name")
    entry = BackboneEntry(
        name=name,
        title=f"{Path(model).stem} ({words})",
        architecture=model,
        weights=weights,
        quick_gelu=bool(quick_gelu),
        image_size=shape.image_size,
        **how,
        trainable_text=trainable_text(config),
        embed_dim=shape.embed_dim,
        width=shape.width,
        layers=shape.layers,
        patch=shape.patch_size,
        timm=isinstance(tower, TimmTower),
        gflops_per_image=float(f"{gflops_per_image(tower):.4g}"),
        parameters=sum(tensor.numel() for tensor in tower.parameters()),
    )
    if file is not None:
        if "hf_model_name" in config["text_cfg"]:
            load_tokenizer(entry)  # fetches the configuration of the text tower of transformers, too
        load_backbone(entry, "cpu", say=say)
    return entry


def model_folder(
    text: str, name: str | None, home: Path, check_key: Callable[[str], None]
) -> tuple[Path, Path, str] | None:
    """Return the model configuration, the weights and the key of a model on the hub or in a folder.

    ``text``: ``hf:OWNER/NAME`` or the path of the folder. ``name``: the key; by default the name in ``text``.
    ``check_key`` is called with the key before anything is fetched or written.

    The folder has ``open_clip_config.json``, or the ``config.json`` of transformers' ``CLIPModel`` or ``SiglipModel``.
    A repository is fetched into ``home``, and the model configuration is written to ``KEY.json`` there. ``None`` if
    ``text`` is neither an address on the hub nor a folder.

    Raises ``UserError`` if there are no weights, or if the configuration does not describe a CLIP.
    """
    folder = Path(text)
    if not text.startswith(HUB) and not folder.is_dir():
        return None
    own = os.path.basename(os.path.abspath(text.removeprefix(HUB).partition("@")[0]))  # that of "." is the folder's
    key = name or as_key(own)
    if wrong := key_problem(key):
        raise UserError(wrong, where="--name")
    check_key(key)
    if text.startswith(HUB):
        folder = fetch_repository(text.removeprefix(HUB), home.absolute() / "checkpoints")[0]
    ours, theirs = folder / "open_clip_config.json", folder / "config.json"
    with explained(ValueError, KeyError, TypeError, what="this is no CLIP that open_clip can build", where=text):
        if ours.is_file():
            config = dict(read_json(ours))["model_cfg"]
        elif theirs.is_file():
            stated = dict(read_json(theirs))
            config = (siglip_config if stated.get("model_type") == "siglip" else open_clip_config)(stated)
        else:
            raise UserError("the folder has neither open_clip_config.json nor config.json", where=text)
    weights = _weights_file(folder)
    home.mkdir(parents=True, exist_ok=True)
    target = home.absolute() / f"{key}.json"
    target.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return target, weights, key


def meta_tower(config: dict[str, Any], name: str) -> ImageTower:
    """Return the image tower of an open_clip model configuration on the device ``meta``, without values or memory.

    Raises ``UserError`` for a configuration that open_clip cannot build, and for a tower that cannot be adapted, for
    example because its images are not square.
    """
    vision = {**(config.get("vision_cfg") or {}), "timm_model_pretrained": False}
    try:
        with torch.device("meta"), _WithoutValues():
            model = open_clip.CLIP(config["embed_dim"], vision, _SMALL_TEXT, quick_gelu=bool(config.get("quick_gelu")))
            return image_tower_of(model)
    except UnsupportedTower as error:
        raise UserError(f"{name}: {error}") from None
    except _NO_CONFIG as error:
        raise UserError(f"{name} is not a model configuration of open_clip: {error!r}") from None


class _WithoutValues(TorchFunctionMode):
    """Skips the initialization of meta tensors: they have no values, and drawing values would take half of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def gflops_per_image(tower: ImageTower) -> float:
    """Return the floating-point operations of one image's forward pass, in units of 10^9. A multiply-add counts as two.

    Matrix products, attention and convolutions are counted. Everything else is below one per cent.
    """
    shape = tower.shape
    if isinstance(tower, FeatureTower):  # no formula fits all of these, so a pass is counted
        image = torch.empty(1, 3, shape.image_size, shape.image_size, device="meta")
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            tower(image)
        return float(counter.get_total_flops()) / 1e9
    patches = (shape.image_size // shape.patch_size) ** 2
    tokens = patches + 1
    convolution = patches * 3 * shape.patch_size**2 * shape.width
    products = tokens * (4 * shape.width**2 + 2 * shape.width * shape.mlp_width)
    attention = 2 * tokens**2 * shape.width
    projection = shape.width * shape.embed_dim
    return 2 * (convolution + shape.layers * (products + attention) + projection) / 1e9


def trainable_text(config: dict[str, Any]) -> bool:
    """Return whether methods can backpropagate through the text tower of an open_clip model configuration.

    Raises ``UserError`` for a text tower that open_clip cannot build.
    """
    try:
        text = dict(config["text_cfg"])
        if text.get("hf_model_name"):
            return False
        with torch.device("meta"):
            model = open_clip.CustomTextCLIP(config["embed_dim"], _SMALL_VISION, text, bool(config.get("quick_gelu")))
            text_shape_from_open_clip(model.text)
    except UnsupportedTower:
        return False
    except _NO_CONFIG as error:
        raise UserError(f"open_clip cannot build the model's text_cfg: {error!r}") from None
    return True


def _architecture(name: str, pretrained: str | None) -> tuple[str, dict[str, Any]]:
    """Return the architecture's name or path for the catalog entry, and its configuration."""
    if name.endswith(".json"):
        path = Path(name).absolute()
        with explained(OSError, ValueError, TypeError, what="the model configuration cannot be read", where=name):
            config = dict(read_json(path))
        if "embed_dim" not in config:
            hint = "if it is that of a folder of open_clip or transformers, give this folder alone"
            raise UserError(f"{name} is not a model configuration of open_clip: it has no embed_dim", hint=hint)
        return str(path), config
    known = open_clip.list_models()
    if name not in known:
        raise unknown_name("model of open_clip", name, known)
    plain = name.removesuffix(QUICK)
    if plain in known and (pretrained is None or pretrained in open_clip.list_pretrained_tags_by_model(plain)):
        name = plain  # a protocol can swap the activation in the field ``quick_gelu``, but not in a name
    return name, dict(open_clip.get_model_config(name))


def _weights_file(path: Path) -> Path:
    """Return the file of weights at ``path``, or the index of its parts. ``path`` may be the folder.

    Raises ``UserError`` if there is none, if there are several checkpoints, or if a part is missing.
    """
    with explained(UnreadableCheckpoint, where="--file"):
        checkpoint_files(path)
        return weights_file(path)
