"""Checkpoints as training programs write them: with wrappers in names, with averages, and as archives."""

import argparse
import json
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from torch import Tensor, nn

import bolt
from bolt.clip.checkpoint_conversion import convert_image_tower
from bolt.clip.checkpoint_files import UnreadableCheckpoint
from bolt.clip.checkpoint_reading import read_checkpoint
from bolt.clip.huggingface import to_huggingface
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower import ImageTower
from bolt.clip.whole_clip import UnknownActivation, clip_from_file
from tests.bolt.clip.conftest import State, convert, prefixed
from tests.helpers.command import invoke

BLOCK = "transformer.resblocks.0."
TINY = Path(__file__).resolve().parents[3] / "grids" / "backbones" / "tiny-clip"


def inside(part: str, state: State) -> State:
    return {name.replace("resblocks.0.", f"resblocks.0.{part}"): tensor for name, tensor in state.items()}


MADE: dict[str, Callable[[State], Any]] = {
    "namespace beside it": lambda s: {"model": s, "args": argparse.Namespace(lr=1e-5), "epoch": 3},
    "lightning": lambda s: {"state_dict": prefixed("model.clip.", s), "hyper_parameters": {"alpha": 0.2}},
    "network": lambda s: {"net": s},
    "only the student": lambda s: {"student": prefixed("module.backbone.", s)},
    "deep": lambda s: {"state": {"trainer": {"weights": prefixed("clip_model.", s)}}},
    "compiled": lambda s: prefixed("module._orig_mod.", s),
    "compiled blocks": lambda s: inside("_orig_mod.", s),
    "fsdp": lambda s: prefixed("_fsdp_wrapped_module.", inside("_fsdp_wrapped_module._checkpoint_wrapped_module.", s)),
    "peft": lambda s: prefixed("base_model.model.", s),
    "optimizer": lambda s: {"model": s, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}},
    "parameters": lambda s: {name: nn.Parameter(tensor) for name, tensor in s.items()},
    "one tower under two names": lambda s: prefixed("clip.", s) | prefixed("encoder.", s),
    "average beside it": lambda s: {"state_dict": s, "state_dict_ema": {n: t + 1 for n, t in s.items()}},
    "average inside": lambda s: s | {f"ema.{n}": t + 1 for n, t in s.items()},
    "average only": lambda s: {"model_ema": s},
}


@pytest.mark.parametrize(
    ("kind", "name"), [*((kind, "x.pt") for kind in MADE), ("network", "model.pth.tar"), ("network", "weights")]
)
def test_wrappers_are_taken_off(
    kind: str, name: str, frozen: ImageTower, tuned: State, tuned_clip: open_clip.CLIP, tmp_path: Path
) -> None:
    for state in (tuned_clip.state_dict(), tuned):
        found = convert(MADE[kind](dict(state)), tmp_path / name, frozen)
        assert all(torch.equal(found.tensors[own], tuned[own]) for own in tuned)
        assert any("EMA" in note for note in found.notes) == ("average" in kind)


def test_teacher_and_student_are_named(frozen: ImageTower, tuned: State, tmp_path: Path) -> None:
    both = {"teacher": tuned, "student": {name: tensor + 1 for name, tensor in tuned.items()}}
    with pytest.raises(TensorMismatch, match=r"teacher, student\).*save one"):
        convert(both, tmp_path / "x.pt", frozen)


"""A and B of these belong to pre-trained weights without the part that A and B began with."""


def test_tensors_outside_a_tower_of_hugging_face_are_counted(frozen: ImageTower, tuned: State) -> None:
    state = to_huggingface(tuned) | {"classifier.weight": torch.ones(3, 3), "text_model.x": torch.ones(3)}
    assert convert_image_tower(state, frozen).notes == ("tensors outside the image tower that were left out: 2",)


def test_a_projection_may_have_another_prefix_than_its_tower(frozen: ImageTower, tuned: State) -> None:
    """In silence, the pre-trained projection took the place of the trained one."""
    state = {(f"encoder.{n}" if n.startswith("vision") else n): each for n, each in to_huggingface(tuned).items()}
    found = convert_image_tower(state, frozen)
    assert torch.equal(found.tensors["proj"], tuned["proj"])
    assert not found.notes
    state["visual_projection.weight"] = torch.ones(3, 3)  # of a classifier, for example
    assert torch.equal(convert_image_tower(state, frozen).tensors["proj"], frozen.state_dict_open_clip()["proj"])


ADVICE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "arrays": ({"class_embedding": np.ones(3)}, {}, r"torch\.as_tensor"),
    "old": (
        {"args": argparse.Namespace(), "model": {"class_embedding": torch.ones(3)}},
        {"_use_new_zipfile_serialization": False}, r"save it again: torch\.save\(torch\.load",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ADVICE)
def test_the_advice_for_python_objects_can_be_followed(kind: str, tmp_path: Path) -> None:
    content, options, says = ADVICE[kind]
    torch.save(content, tmp_path / "x.pt", **options)
    with pytest.raises(UnreadableCheckpoint, match=says):
        read_checkpoint(tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt", weights_only=False)
    found = {k: torch.as_tensor(v) for k, v in found.items()} if kind == "arrays" else found
    torch.save(found, tmp_path / "x.pt")
    assert [name.rpartition(".")[2] for name in read_checkpoint(tmp_path / "x.pt").tensors] == ["class_embedding"]


class OpenAI(nn.Module):
    """The names in OpenAI's archives."""

    visual: nn.Module

    def __init__(self, model: open_clip.CLIP) -> None:
        super().__init__()
        for name, child in model.named_children():
            setattr(self, name, child)
        for name, value in model.named_parameters(recurse=False):
            setattr(self, name, value)
        for name in ("input_resolution", "context_length", "vocab_size"):
            self.register_buffer(name, torch.tensor(32))

    def forward(self, images: Tensor) -> Tensor:
        return torch.as_tensor(self.visual(images))


@pytest.fixture(scope="module")
def tiny() -> open_clip.CLIP:
    open_clip.add_model_config(TINY.with_suffix(".json"))
    return open_clip.create_model("tiny-clip", pretrained=f"{TINY}.safetensors").eval()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*", "ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
def test_an_archive_of_openai_is_read_and_needs_quick_gelu(tiny: open_clip.CLIP, tmp_path: Path) -> None:
    file = tmp_path / "ViT.pt"
    torch.jit.trace(OpenAI(tiny).half(), torch.zeros(1, 3, 32, 32).half(), check_trace=False).save(file)
    backbone = bolt.load_backbone(TINY.with_suffix(".json"), file)
    assert backbone.activation == "quick_gelu"
    tower = backbone.tower.state_dict_open_clip()
    assert all(torch.equal(tensor, tower[name]) for name, tensor in tiny.float().visual.state_dict().items())
    with pytest.raises(UnknownActivation, match=r"OpenAI.*state quick_gelu=True"):
        bolt.load_backbone(TINY.with_suffix(".json"), file, quick_gelu=False)


def test_the_activation_of_a_file_is_asked_for(tiny: open_clip.CLIP, tmp_path: Path) -> None:
    torch.save({"epoch": 5, "state_dict": tiny.state_dict()}, tmp_path / "epoch_5.pt")
    given = (TINY.with_suffix(".json"), tmp_path / "epoch_5.pt")
    with pytest.raises(UnknownActivation, match=r"quick_gelu=True.*quick_gelu=False"):
        bolt.load_backbone(*given)
    backbone = bolt.load_backbone(*given, quick_gelu=False, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert (backbone.activation, backbone.mean, backbone.std) == ("gelu", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    (tmp_path / "open_clip_config.json").write_text('{"model_cfg": {"quick_gelu": true}}')
    assert bolt.load_backbone(*given).activation == "quick_gelu"


def test_the_text_tower_is_found_with_and_without_its_prefix(tiny: open_clip.CLIP, tmp_path: Path) -> None:
    """Regression: a model of the other kind of open_clip (``custom_text``) was refused, or ended with a traceback."""
    config = json.loads(TINY.with_suffix(".json").read_text()) | {"custom_text": True}
    (tmp_path / "custom-clip.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "custom-clip.json")
    torch.save(tiny.state_dict(), tmp_path / "plain.pt")
    custom = clip_from_file("custom-clip", tmp_path / "plain.pt", False)
    torch.save(custom.state_dict(), tmp_path / "custom.pt")
    plain = clip_from_file("tiny-clip", tmp_path / "custom.pt", False)
    texts = open_clip.tokenize(["a cat", "a dog"])[:, :32]
    models: list[Any] = [custom, plain]
    for model in models:
        with torch.no_grad():
            assert torch.equal(model.encode_text(texts), tiny.encode_text(texts))


def test_what_lies_beside_a_whole_clip_is_named(tiny: open_clip.CLIP, tmp_path: Path) -> None:
    """A classifier or an adapter of features was left out without a word."""
    averaged = {"n_averaged": torch.tensor(3), **prefixed("module.", dict(tiny.state_dict()))}
    with_bias = {**tiny.state_dict(), "logit_bias": torch.tensor([-10.0])}  # of a training with SigLIP's loss
    optimizer = {"state": {0: {"exp_avg": torch.ones(2)}}}
    for content in (averaged, with_bias, {"model": tiny.state_dict(), "optimizer": optimizer}):
        torch.save(content, tmp_path / "x.pt")
        clip_from_file("tiny-clip", tmp_path / "x.pt", False)
    torch.save({"model": tiny.state_dict(), "fc": {"weight": torch.ones(2), "bias": torch.ones(2)}}, tmp_path / "x.pt")
    with pytest.warns(UserWarning, match=r"outside the CLIP that were left out: 2 \(fc\.weight, fc\.bias\)"):
        clip_from_file("tiny-clip", tmp_path / "x.pt", False)
    visual = {name: tensor for name, tensor in tiny.state_dict().items() if name.startswith("visual.")}
    torch.save(visual | prefixed("clip.", dict(tiny.state_dict())), tmp_path / "y.pt")  # one tower under two names
    with pytest.warns(UserWarning, match=rf"left out: {len(visual)} \(visual"):
        clip_from_file("tiny-clip", tmp_path / "y.pt", False)
    visual["visual.proj"] = visual["visual.proj"] + 1
    torch.save(visual | prefixed("clip.", dict(tiny.state_dict())), tmp_path / "y.pt")
    with pytest.raises(TensorMismatch, match="several"):
        clip_from_file("tiny-clip", tmp_path / "y.pt", False)
    other = {**tiny.state_dict(), "text_projection": tiny.text_projection + 1}  # the image tower was frozen
    torch.save(prefixed("a.", dict(tiny.state_dict())) | prefixed("b.", other), tmp_path / "y.pt")
    with pytest.raises(TensorMismatch, match="several"):
        clip_from_file("tiny-clip", tmp_path / "y.pt", False)
    entry = ("backbones", "add", TINY.with_suffix(".json"), "--file", tmp_path / "x.pt", "--gelu", "--name", "mine")
    assert "note: " in (said := invoke(*entry, "--catalog", tmp_path / "mine.yaml"))
    assert "(fc.weight, fc.bias)" in " ".join(said.split())


@pytest.mark.parametrize(
    ("name", "content", "fits"),
    [
        ("vocab.json", {"photo</w>": 1125}, True), ("tokenizer.json", {"model": {"vocab": {"photo</w>": 1125}}}, True),
        ("vocab.json", {"photo</w>": 300}, False), ("tokenizer.json", {"model": {"vocab": [["photo", -3.5]]}}, False),
        ("vocab.json", ["words", "of", "another", "program"], True), ("tokenizer.json", {"version": "1.0"}, True),
    ],
)  # fmt: skip
def test_a_clip_of_another_vocabulary_is_refused(
    name: str, content: Any, fits: bool, tiny: open_clip.CLIP, tmp_path: Path
) -> None:
    """A Korean CLIP of transformers has as many tokens as CLIP, but others: its text embeddings had no meaning."""
    torch.save(tiny.state_dict(), tmp_path / "x.pt")
    (tmp_path / name).write_text(json.dumps(content))
    with nullcontext() if fits else pytest.raises(TensorMismatch, match=rf"{name} has other tokens than CLIP's"):
        clip_from_file("tiny-clip", tmp_path / "x.pt", False)


def test_what_is_no_whole_clip_is_named(tiny: open_clip.CLIP, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in tiny.state_dict().items()}
    refused: list[tuple[dict[str, Tensor], str]] = [
        (dict(tiny.visual.state_dict()), "image tower alone"),
        (to_huggingface(tiny.visual.state_dict()), "Hugging Face"),
        (state | {"logit_scale": torch.tensor(float("nan"))}, "NaN or infinity in logit_scale"),
        (state | {"visual.proj": (100 * state["visual.proj"]).to(torch.int8)}, "visual.proj holds int8 numbers"),
        (state | {"visual.positional_embedding": torch.ones(50, 96)}, r"\(50, 96\) instead of \(17, 96\)"),
    ]
    for content, complaint in refused:
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(TensorMismatch, match=complaint):
            clip_from_file("tiny-clip", tmp_path / "x.pt", False)


def archive(path: Path, change: Callable[[str, bytes], bytes], **options: Any) -> Path:
    """Write a checkpoint, then rewrite its archive with changed members."""
    torch.save({"class_embedding": torch.ones(4)}, path / "whole.pt")
    with zipfile.ZipFile(path / "whole.pt") as old, zipfile.ZipFile(path / "x.pt", "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return path / "x.pt"


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "compressed": (lambda p: archive(p, lambda _, c: c, compression=zipfile.ZIP_DEFLATED), "compressed"),
    "other bytes": (lambda p: archive(p, lambda n, c: b"big" if "byteorder" in n else c), "byte order"),
    "longer": (lambda p: archive(p, lambda n, c: c[:4] if "data/0" in n else c), "states 4 elements"),
    "memo": (lambda p: archive(p, lambda n, c: b"\x80\x02}r\xff\xff\xff\x7f." if "pkl" in n else c), "a mapping"),
    "allocation": (lambda p: archive(p, lambda n, c: b"\x80\x05\x96" + b"\xff" * 8 if "pkl" in n else c), "complete"),
    "cut pickle": (lambda p: archive(p, lambda n, c: c[:20] if "pkl" in n else c), "not a complete file"),
    "no pickle": (lambda p: archive(p, lambda n, c: c).rename(p / "y.pt") and _nested(p), "unpack it"),
    "repeated value": (
        lambda p: archive(
            p, lambda n, c: c.replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85").replace(b"K\x01\x85", b"K\x00\x85")
        ),
        "larger than its storage",
    ),
}


def _nested(path: Path) -> Path:
    with zipfile.ZipFile(path / "x.zip", "w") as outer:
        outer.write(path / "y.pt", "../y.pt")
    return path / "x.zip"


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_one_message(kind: str, tmp_path: Path) -> None:
    make, complaint = HOSTILE[kind]
    with pytest.raises(UnreadableCheckpoint, match=complaint):
        read_checkpoint(make(tmp_path))


def test_a_hostile_index_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("[" * 200_000)
    with pytest.raises(UnreadableCheckpoint, match="nested too deeply"):
        read_checkpoint(tmp_path)
    (tmp_path / "bolt.json").write_text("[" * 200_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        bolt.load_model(tmp_path)
