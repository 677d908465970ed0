"""Backbones: entries filled from open_clip, and the activation held against what is known of the weights."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import bolt
from bolt.clip.huggingface import config_from_shape
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.whole_clip import model_name
from orchestrator.artifacts.load_backbone import load_backbone
from orchestrator.catalog import BackboneEntry, load_catalog
from orchestrator.catalog.location import grids_folder
from orchestrator.models.backbone_entry import backbone_entry, gflops_per_image, meta_tower
from orchestrator.util.errors import UserError
from tests.helpers.command import invoke

CONFIG, WEIGHTS = (grids_folder() / "backbones" / name for name in ("tiny-clip.json", "tiny-clip.safetensors"))
TINY: dict[str, Any] = {"architecture": str(CONFIG), "file": WEIGHTS, "name": "mine"}


@pytest.mark.parametrize("key", ["vit-b-32", "vit-b-16", "vit-l-14", "tiny-clip"])
def test_sizes_and_cost_are_those_of_the_shipped_entries(key: str) -> None:
    entry = load_catalog().backbone(key)
    if entry.architecture.endswith(".json"):
        config = json.loads((grids_folder() / entry.architecture).read_text())
    else:
        config = open_clip.get_model_config(entry.architecture)
    tower = meta_tower(config, key)
    shape = tower.shape
    assert sum(tensor.numel() for tensor in tower.parameters()) == entry.parameters
    assert gflops_per_image(tower) == pytest.approx(entry.gflops_per_image, rel=2e-3)
    sizes = (shape.image_size, shape.embed_dim, shape.width, shape.layers, shape.patch_size)
    assert sizes == (entry.image_size, entry.embed_dim, entry.width, entry.layers, entry.patch)


def test_patch_resolution_and_the_activation_of_a_tag_are_open_clips() -> None:
    entry = backbone_entry("ViT-L-14-336", "openai")
    assert (entry.name, entry.image_size, entry.patch, entry.quick_gelu) == ("vit-l-14-336-openai", 336, 14, True)
    assert backbone_entry("ViT-B-32", "metaclip_400m").quick_gelu
    assert backbone_entry("roberta-ViT-B-32", "laion2b_s12b_b32k").quick_gelu  # the list does not say, but the model
    assert not backbone_entry("ViT-B-32", "laion2b_s34b_b79k").quick_gelu
    quick = backbone_entry("ViT-B-32-quickgelu", "openai")
    assert (quick.architecture, quick.quick_gelu) == ("ViT-B-32", True)


REFUSED: dict[str, dict[str, Any]] = {
    "unknown model of open_clip 'ViT-B-23'": {"architecture": "ViT-B-23", "pretrained": "openai"},
    "unknown pre-trained tag of ViT-B-32 'open'": {"architecture": "ViT-B-32", "pretrained": "open"},
    "open_clip says .* quick_gelu": {"architecture": "ViT-B-32", "pretrained": "openai", "quick_gelu": False},
    "activation .* is not known": TINY,
    "needs weights of open_clip or a file": {"architecture": "ViT-B-32"},
    "may hold lower-case letters": {**TINY, "name": "Mine!", "quick_gelu": False},
    r"(?s)is not a model configuration of open_clip.*give this folder alone": {
        **TINY,
        "architecture": "config.json",
        "quick_gelu": False,
    },
}


@pytest.mark.parametrize("complaint", REFUSED)
def test_what_cannot_be_a_backbone_is_refused(complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(UserError, match=complaint):
        backbone_entry(**REFUSED[complaint])


def test_a_file_becomes_a_backbone(tmp_path: Path) -> None:
    """By the command; the entry loads, and is the shipped one under another name."""
    catalog = tmp_path / "mine.yaml"
    words = ("backbones", "add", CONFIG, "--file", WEIGHTS, "--name", "mine", "--gelu", "--catalog", catalog)
    invoke(*words)
    found, shipped = load_catalog([catalog]).backbone("mine"), load_catalog().backbone("tiny-clip")
    same = ("image_size", "embed_dim", "width", "layers", "patch", "parameters", "quick_gelu")
    assert all(getattr(found, name) == getattr(shipped, name) for name in same)
    listed = invoke("backbones", "list", "--catalog", catalog)
    row = next(line for line in listed.splitlines() if line.startswith("mine "))
    assert row.split()[3:6] == ["gelu", "32", "8"]
    with pytest.raises(UserError, match="already has a backbone mine"):
        invoke(*words)


def _beside(folder: Path, name: str, config: dict[str, Any]) -> dict[str, Any]:
    folder.mkdir()
    save_file(load_file(WEIGHTS), folder / "weights.safetensors")
    (folder / name).write_text(json.dumps(config))
    return {**TINY, "file": folder / "weights.safetensors"}


def test_a_configuration_beside_a_file_says_the_activation(tmp_path: Path) -> None:
    shape = meta_tower(json.loads(CONFIG.read_text()), "tiny").shape
    theirs = _beside(tmp_path / "theirs", "config.json", config_from_shape(shape))
    no_clip = {"vision_cfg": {}, "text_cfg": {"heads": None}}
    ours = _beside(tmp_path / "ours", "open_clip_config.json", {"model_cfg": {"quick_gelu": True, **no_clip}})
    assert (backbone_entry(**theirs).quick_gelu, backbone_entry(**ours).quick_gelu) == (False, True)
    with pytest.raises(UserError, match=r"open_clip_config\.json says .* quick_gelu"):
        backbone_entry(**ours, quick_gelu=False)
    # The settings of a training were read as a CLIP's, whose default is QuickGELU.
    beside = _beside(tmp_path / "run", "config.json", {"lr": 1e-5, "epochs": 3})
    with pytest.raises(UserError, match=r"activation .* is not known"):
        backbone_entry(**beside)
    assert not backbone_entry(**beside, quick_gelu=False).quick_gelu
    beside = _beside(tmp_path / "heads", "config.json", config_from_shape(replace(shape, heads=2)))
    with pytest.raises(UserError, match=r"image tower: .*heads/config\.json states 2, but tiny-clip has 4"):
        backbone_entry(**beside)


def test_a_taken_name_is_refused_before_the_configuration_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once replaced the configuration of the backbone that has the name."""
    words = ("--name", "mine", "--catalog", tmp_path / "mine.yaml")
    model = {"model_cfg": json.loads(CONFIG.read_text()) | {"quick_gelu": False}}
    _beside(tmp_path / "one", "open_clip_config.json", model)
    _beside(tmp_path / "other", "open_clip_config.json", {"model_cfg": model["model_cfg"] | {"custom_text": False}})
    invoke("backbones", "add", tmp_path / "one", *words)
    before = (tmp_path / "mine.json").read_text()
    with pytest.raises(UserError, match="already has a backbone mine"):
        invoke("backbones", "add", tmp_path / "other", *words)
    assert (tmp_path / "mine.json").read_text() == before
    monkeypatch.chdir(tmp_path / "one")
    invoke("backbones", "add", ".", "--catalog", tmp_path / "dot.yaml")
    assert (tmp_path / "one.json").read_text() == before


@pytest.mark.parametrize("name", ["config.json", "open_clip_config.json"])
def test_other_heads_of_the_text_tower_are_refused(tmp_path: Path, name: str) -> None:
    """Regression: the tensors have the same shapes, so the architecture's own number was taken in silence."""
    config = json.loads(CONFIG.read_text())
    heads = config["text_cfg"]["heads"]
    for said in (heads, heads // 2):
        vision = config_from_shape(meta_tower(config, "tiny").shape)
        theirs = {"model_type": "clip", "vision_config": vision, "text_config": {"num_attention_heads": said}}
        theirs |= {"projection_dim": config["embed_dim"]}
        ours = {"model_cfg": config | {"text_cfg": config["text_cfg"] | {"heads": said}, "quick_gelu": False}}
        beside = _beside(tmp_path / str(said), name, theirs if name == "config.json" else ours)
        if said == heads:
            assert backbone_entry(**beside)
            continue
        with pytest.raises(UserError, match=rf"heads of the text tower: .*{name} states {said}, but .* has {heads}"):
            backbone_entry(**beside)
        with pytest.raises(TensorMismatch, match="heads of the text tower"):
            bolt.load_backbone(beside["architecture"], beside["file"])


PROCESSOR: dict[str, Any] = {
    "do_resize": True, "size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32},
    "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.2, 0.2, 0.2],
}  # fmt: skip
STATED: dict[str, tuple[dict[str, Any], tuple[str, str, float, float] | str]] = {
    "as CLIP": ({}, ("shortest", "bicubic", 0.5, 0.2)),
    "old": ({"size": 32, "crop_size": 32}, ("shortest", "bicubic", 0.5, 0.2)),
    "bilinear": ({"resample": 2}, ("shortest", "bilinear", 0.5, 0.2)),
    "squash": ({"size": {"height": 32, "width": 32}, "do_center_crop": None}, ("squash", "bicubic", 0.5, 0.2)),
    "pixels from 0 to 255": ({"do_rescale": False}, ("shortest", "bicubic", 0.5 / 255, 0.2 / 255)),
    "pixels from 0 to 2": ({"rescale_factor": 2 / 255}, ("shortest", "bicubic", 0.25, 0.1)),
    "as they are": ({"do_normalize": False}, ("shortest", "bicubic", 0.0, 1.0)),
    "nearest": ({"resample": 0}, "interpolation is 'nearest'"),
    "lanczos": ({"resample": 1}, "interpolation is 'lanczos'"),
    "a smaller crop": ({"size": {"shortest_edge": 36}}, "does not resize images to the square"),
    "longest": ({"size": {"longest_edge": 32}}, "does not resize images to the square"),
    "no crop": ({"do_center_crop": False}, "does not resize images to the square"),
    "no square": ({"size": {"height": 32, "width": 36}}, "does not resize images to the square"),
    "no resize": ({"do_resize": False}, "does not resize images to the square"),
    "of another tower": ({"size": 48, "crop_size": 48}, "makes images of 48 pixels, and the tower takes 32"),
    "one mean": ({"image_mean": [0.5]}, r"mean is \[0\.5\]"),
    "no numbers": ({"image_std": "x"}, "std is x"),
    "a list": ({"size": [32, 32]}, "cannot be used"),
}


@pytest.mark.parametrize(("kind", "given"), [*((kind, "weights.safetensors") for kind in STATED), ("squash", "")])
def test_the_preprocessing_beside_a_file_is_followed_or_refused(kind: str, given: str, tmp_path: Path) -> None:
    """Steps that a backbone does not have were replaced by CLIP's without a word."""
    changes, expected = STATED[kind]
    beside = _beside(tmp_path / "theirs", "preprocessor_config.json", PROCESSOR | changes)
    beside = {**beside, "file": tmp_path / "theirs" / given, "quick_gelu": False}
    if isinstance(expected, str):
        with pytest.raises(UserError, match=rf"preprocessor_config\.json cannot be used: .*{expected}|{expected}"):
            backbone_entry(**beside)
        return
    entry = backbone_entry(**beside)
    assert entry.mean is not None
    assert entry.std is not None
    assert (entry.resize, entry.interpolation, entry.mean[0], entry.std[0]) == pytest.approx(expected)


def test_the_preprocessing_in_the_file_of_transformers_5_is_read(tmp_path: Path) -> None:
    """``CLIPProcessor`` writes no ``preprocessor_config.json`` any more; CLIP's mean was taken without a word."""
    beside = _beside(tmp_path / "new", "processor_config.json", {"image_processor": PROCESSOR, "processor_class": "X"})
    entry = backbone_entry(**beside, quick_gelu=False)
    assert (entry.mean, entry.std) == ((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    beside = _beside(tmp_path / "class", "processor_config.json", {"processor_class": "CLIPProcessor"})
    assert backbone_entry(**beside, quick_gelu=False).mean is None


WRONG: list[dict[str, Any]] = [
    {"interpolation": "random"}, {"resize_mode": "stretch"}, {"mean": [0.5]}, {"mean": [123.7, 116.3, 103.5]},
    {"std": [0.0, 0.0, 0.0]}, {"fill_color": 127, "resize_mode": "longest"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_open_clips_preprocessing_that_is_none_was_a_traceback(wrong: dict[str, Any], tmp_path: Path) -> None:
    beside = _beside(tmp_path / "ours", "open_clip_config.json", {"model_cfg": {}, "preprocess_cfg": wrong})
    with pytest.raises(UserError, match=rf"open_clip_config\.json cannot be used: its {next(iter(wrong))} is"):
        backbone_entry(**beside)


def test_a_mean_for_pixels_to_255_is_refused_in_python() -> None:
    """Every image looked black, and had a label."""
    with pytest.raises(ValueError, match=r"mean is .*123.*, not three numbers for pixels in \[0, 1\]"):
        bolt.load_backbone(CONFIG, WEIGHTS, quick_gelu=False, mean=[123, 116, 103])


def test_an_architecture_that_contradicts_its_weights_is_refused_in_python(tmp_path: Path) -> None:
    """The catalog's commands compared both, and the library took the architecture's activation without a word."""
    config = json.loads(CONFIG.read_text()) | {"quick_gelu": True}
    (tmp_path / "quick.json").write_text(json.dumps(config))
    beside = _beside(tmp_path / "theirs", "open_clip_config.json", {"model_cfg": config | {"quick_gelu": False}})
    with pytest.raises(ValueError, match=r"the activation quick_gelu, and the weights .* need the other one"):
        bolt.load_backbone(tmp_path / "quick.json", beside["file"])
    with pytest.raises(ValueError, match="theirs is a folder, not an architecture"):
        bolt.load_backbone(tmp_path / "theirs", beside["file"])


def test_an_own_configuration_leaves_open_clips_model_of_that_name_alone(tmp_path: Path) -> None:
    """In the same program, the model of open_clip got the heads of the user's file, without a word."""
    own = open_clip.get_model_config("ViT-S-32-alt")
    torch.save(open_clip.create_model("ViT-S-32-alt").state_dict(), tmp_path / "weights.pt")
    theirs = backbone_entry("ViT-S-32-alt", file=tmp_path / "weights.pt", name="theirs", quick_gelu=False)
    own["vision_cfg"]["head_width"] = 32
    (tmp_path / "ViT-S-32-alt.json").write_text(json.dumps(own))
    mine = bolt.load_backbone(tmp_path / "ViT-S-32-alt.json", tmp_path / "weights.pt", quick_gelu=False)
    found = bolt.load_backbone("ViT-S-32-alt", tmp_path / "weights.pt", quick_gelu=False)
    heads = [backbone.tower.shape.heads for backbone in (mine, found, load_backbone(theirs, "cpu"))]
    width = own["vision_cfg"]["width"]
    assert heads == [width // 32, width // 64, width // 64]


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "another version's text": ({"text_cfg": {"fancy": 1}}, "open_clip cannot build the model's text_cfg: .*fancy"),
    "heads that do not divide": ({"text_cfg": {"width": 32, "heads": 5}}, "model's text_cfg.*divisible"),
    "another version's model": ({"fancy": 1}, "cannot be built from .*fancy"),
    "no text": ({"text_cfg": None}, "open_clip cannot build the model's text_cfg"),
    "a tokenizer that draws": (
        {"text_cfg": {"tokenizer_kwargs": {"reduction_mask": "simple"}}},
        "reduction_mask to simple, which draws",
    ),
    "a vector for each token": ({"vision_cfg": {"pool_type": "none"}}, "does not give one vector for an image"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_configuration_that_open_clip_cannot_build_says_so(kind: str, tmp_path: Path) -> None:
    """Most were tracebacks, and one said that the weights ``None`` are not on this machine."""
    change, complaint = UNFIT[kind]
    config = json.loads(CONFIG.read_text())
    for name, value in change.items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    (tmp_path / "mine.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=complaint):
        backbone_entry(**{**TINY, "architecture": str(tmp_path / "mine.json")}, quick_gelu=False)


def test_a_models_name_may_have_a_slash() -> None:
    """``ViT-B/32`` became ``32``, and a model of the hub became open_clip's own model of that name."""
    for name in ("ViT-B/32", "hf-hub:someone/ViT-B-32"):
        assert model_name(name) == name


def test_a_configuration_without_a_part_is_not_that_of_another_folder(tmp_path: Path) -> None:
    """open_clip ignores such a file, and built the last model of that name."""
    for folder, text in (("whole", CONFIG.read_text()), ("part", '{"embed_dim": 32}')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.json").write_text(text)
    assert bolt.load_backbone(tmp_path / "whole" / "mine.json", WEIGHTS, quick_gelu=False).name == "mine"
    with pytest.raises(ValueError, match="has no text_cfg, vision_cfg"):
        bolt.load_backbone(tmp_path / "part" / "mine.json", WEIGHTS, quick_gelu=False)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    tensors = load_file(WEIGHTS)
    del tensors["visual.proj"]
    save_file(tensors, tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match=r"do not fit a tiny-clip: .*visual\.proj"):
        backbone_entry(str(CONFIG), file=tmp_path / "weights.safetensors", quick_gelu=False)


@pytest.mark.parametrize(("name", "content"), [("text.pt", b"a text\n"), ("cut.safetensors", b"\x10"), ("no.bin", b"")])
def test_a_file_that_holds_no_weights_was_a_traceback(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"--file: .*{name}"):
        backbone_entry(**{**TINY, "file": tmp_path / name}, quick_gelu=False)


def _changed(key: str, **changes: Any) -> dict[str, Any]:
    fields = load_catalog().backbone(key).model_dump(exclude={"name"}, exclude_none=True)
    return {**fields, **changes}


@pytest.mark.parametrize(
    ("key", "wrong", "complaint"),
    [
        ("vit-b-32", {"quick_gelu": False}, r"(?s)backbones\.wrong.*write quick_gelu: true"),  # OpenAI's weights
        ("tiny-clip", {"mean": [123.7, 116.3, 103.5]}, r"backbones\.wrong\.mean"),  # for pixels to 255
        ("tiny-clip", {"std": [58.4, 57.1, 57.4]}, r"backbones\.wrong\.std"),
        ("tiny-clip", {"std": [0.0] * 3}, r"backbones\.wrong\.std"),
    ],
)
def test_a_wrong_entry_is_refused_while_planning(
    key: str, wrong: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"backbones": {"wrong": _changed(key, **wrong)}}))
    with pytest.raises(UserError, match=complaint):
        load_catalog([tmp_path / "mine.yaml"])


def test_a_wrong_entry_is_refused_when_loaded() -> None:
    """The table of open_clip knows the activation of its other weights, and the model itself its sizes."""
    changed = _changed("vit-b-32", weights={"pretrained": "laion2b_s34b_b79k"}, quick_gelu=True)
    sizes = load_catalog().backbone("tiny-clip").model_copy(update={"image_size": 64})
    for entry, complaint in (
        (BackboneEntry(name="wrong", **changed), r"(?s)lists quick_gelu false.*write quick_gelu: false"),
        (sizes, "has image_size 32, its catalog entry says 64"),
    ):
        with pytest.raises(UserError, match=complaint):
            load_backbone(entry, "cpu")


def test_a_text_side_of_other_weights_is_not_loaded_again(tmp_path: Path) -> None:
    """A backbone without a text side of its own reads the file again, which may be another one by then."""
    file = tmp_path / "weights.safetensors"
    shutil.copy(WEIGHTS, file)
    tiny = load_catalog().backbone("tiny-clip")
    entry = tiny.model_copy(update={"weights": tiny.weights.model_copy(update={"file": str(file)})})
    backbone = load_backbone(entry, "cpu", keep_text=False)
    kept = load_backbone(entry, "cpu")
    assert torch.equal(backbone.encode_prompts(["a cat"]), kept.encode_prompts(["a cat"]))
    save_file({name: 2 * tensor for name, tensor in load_file(WEIGHTS).items()}, file)
    with pytest.raises(UserError, match="changed since they were loaded"):
        backbone.encode_prompts(["a cat"])
    file.unlink()
    with pytest.raises(UserError, match=r"weights\.safetensors"):
        backbone.encode_prompts(["a cat"])
    kept.encode_prompts(["a cat"])
