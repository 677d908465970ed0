"""Checkpoints of other projects: every layout is compared with its library, and unusable files are refused."""

import errno
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel, CLIPVisionConfig, CLIPVisionModel, CLIPVisionModelWithProjection

from bolt.clip.checkpoint_conversion import convert_image_tower, distance_moved
from bolt.clip.checkpoint_files import UnreadableCheckpoint, config_file
from bolt.clip.checkpoint_reading import read_checkpoint
from bolt.clip.huggingface import config_from_shape, from_huggingface, shape_from_config, to_huggingface
from bolt.clip.tensor_files import save_tensors
from bolt.clip.tensor_names import PROJECTION, TensorMismatch
from bolt.clip.tower import ImageTower
from bolt.seeds import torch_generator
from tests.helpers.towers import random_clip
from tests.helpers.warm_process import run_forked

State = dict[str, Tensor]
VISION = {
    "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8, "projection_dim": 16,
}  # fmt: skip
TEXT = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 16, "bos_token_id": 62, "eos_token_id": 63,
}  # fmt: skip


@pytest.fixture(scope="module")
def images_B3SS() -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch_generator("images"))


def their_model(kind: str, activation: str = "quick_gelu") -> Any:
    """Return a random model of transformers, with random biases and gains too."""
    vision = {**VISION, "hidden_act": activation}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "CLIPModel":
            model = CLIPModel(CLIPConfig(vision_config=vision, text_config=TEXT, projection_dim=16))
        else:
            classes = {"CLIPVisionModel": CLIPVisionModel, "WithProjection": CLIPVisionModelWithProjection}
            model = classes[kind](CLIPVisionConfig(**vision))
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


def embeddings_of(model: nn.Module, images: Tensor, frozen: ImageTower) -> Tensor:
    """Return the joint embeddings of a model of transformers; a model without projection gets the frozen projection."""
    with torch.no_grad():
        if isinstance(model, CLIPVisionModelWithProjection):
            return model(pixel_values=images).image_embeds
        if isinstance(model, CLIPModel):
            pooled = model.vision_model(pixel_values=images).pooler_output
            return model.visual_projection(pooled)
        return model(pixel_values=images).pooler_output @ frozen.state_dict_open_clip()[PROJECTION]


def run(frozen: ImageTower, tensors: State, images: Tensor) -> Tensor:
    tower = frozen.copy(trainable=tensors)
    tower.load_open_clip(tensors)
    with torch.no_grad():
        return tower(images)


@pytest.mark.parametrize("kind", ["CLIPModel", "WithProjection", "CLIPVisionModel"])
def test_a_hugging_face_model_embeds_alike(kind: str, frozen: ImageTower, images_B3SS: Tensor, tmp_path: Path) -> None:
    model = their_model(kind)
    model.save_pretrained(tmp_path)
    converted = convert_image_tower(read_checkpoint(tmp_path), frozen)
    difference = run(frozen, converted.tensors, images_B3SS) - embeddings_of(model, images_B3SS, frozen)
    assert difference.abs().max() < 1e-5
    assert converted.layout.startswith("Hugging Face")
    assert any("no projection" in note for note in converted.notes) == (kind == "CLIPVisionModel")
    assert shape_from_config(json.loads(config_file(tmp_path).read_text())) == frozen.shape


def test_names_of_older_hugging_face_versions(frozen: ImageTower) -> None:
    """Older versions wrote ``vision_model.`` before the names of a ``CLIPVisionModel``, and a buffer of positions."""
    bare = {n.removeprefix("vision_model."): t for n, t in their_model("CLIPVisionModel").state_dict().items()}
    older = {f"vision_model.{name}": tensor for name, tensor in bare.items()}
    older["vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    ours, theirs = convert_image_tower(bare, frozen), convert_image_tower(older, frozen)
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_a_converted_tower_runs_in_transformers(activation: str, images_B3SS: Tensor, tmp_path: Path) -> None:
    """transformers loads the converted tensors and configuration completely, and its embeddings are equal."""
    tower = ImageTower.from_open_clip(random_clip(quick_gelu=activation == "quick_gelu").visual)
    state = tower.state_dict_open_clip()
    theirs = to_huggingface(state)
    back = from_huggingface(theirs)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    save_file(theirs, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config_from_shape(tower.shape)))
    model, report = CLIPVisionModelWithProjection.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        assert (model.eval()(pixel_values=images_B3SS).image_embeds - tower(images_B3SS)).abs().max() < 1e-5
    assert shape_from_config(json.loads((tmp_path / "config.json").read_text())) == tower.shape


@pytest.mark.parametrize(
    ("config", "complaint"),
    [({"model_type": "vit"}, "'vit'"), ({"model_type": "clip_vision_model", "hidden_act": "relu"}, "'relu'")],
    ids=["another model", "another activation"],
)
def test_a_configuration_without_an_equal_is_refused(config: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        shape_from_config(config)


def torch_file(content: object, zipped: bool = True) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


WAYS: dict[str, tuple[Callable[[State, State], bytes], str]] = {
    "tower.safetensors": (lambda tower, clip: save(tower), "open_clip image tower"),
    "clip.pt": (lambda tower, clip: torch_file({"epoch": 3, "state_dict": clip}), "open_clip CLIP"),
    "clip.pth": (lambda tower, clip: torch_file({f"module.{n}": t for n, t in clip.items()}), "open_clip CLIP"),
    "encoder.pt": (  # without the text tower's blocks; its scale, positions and projection stay
        lambda tower, clip: torch_file(
            {f"model.{n}": t for n, t in clip.items() if not n.startswith(("transformer.", "token_"))}
        ),
        "open_clip CLIP",
    ),
    "classifier.bin": (
        lambda tower, clip: torch_file(
            {f"image_encoder.model.{n}": t for n, t in clip.items()}
            | {"classification_head.weight": torch.ones(3, 16)},
            zipped=False,
        ),
        "open_clip CLIP",
    ),
}


@pytest.mark.parametrize("file", WAYS)
def test_open_clip_layouts_come_back_bit_for_bit(
    file: str, frozen: ImageTower, tuned: State, tuned_clip: open_clip.CLIP, images_B3SS: Tensor, tmp_path: Path
) -> None:
    content, layout = WAYS[file]
    (tmp_path / file).write_bytes(content(tuned, tuned_clip.state_dict()))
    converted = convert_image_tower(read_checkpoint(tmp_path / file), frozen)
    assert converted.layout == layout
    assert list(converted.tensors) == list(tuned)
    assert all(torch.equal(converted.tensors[name], tuned[name]) for name in tuned)
    with torch.no_grad():
        original = tuned_clip.visual(images_B3SS)
    assert (run(frozen, converted.tensors, images_B3SS) - original).abs().max() < 1e-5


def test_a_checkpoint_in_parts(frozen: ImageTower, tuned: State, tmp_path: Path) -> None:
    names = list(tuned)
    parts = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, held in parts.items():
        save_file({name: tuned[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    converted = convert_image_tower(read_checkpoint(tmp_path), frozen)
    assert all(torch.equal(converted.tensors[name], tuned[name]) for name in tuned)


def test_half_precision_is_widened_and_said(frozen: ImageTower, tuned: State) -> None:
    converted = convert_image_tower({name: tensor.half() for name, tensor in tuned.items()}, frozen)
    assert all(tensor.dtype == torch.float32 for tensor in converted.tensors.values())
    assert converted.notes == ("float16 numbers were converted to float32",)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_pretrained_tower_in_fewer_bits_is_no_source(kind: torch.dtype, frozen: ImageTower, tuned: State) -> None:
    """Regression: in float8, it was taken for a fine-tuned tower whose task vector is the rounding."""
    before = frozen.state_dict_open_clip()
    with pytest.raises(TensorMismatch, match="itself"):
        distance_moved(convert_image_tower({name: tensor.to(kind) for name, tensor in before.items()}, frozen), before)
    rounded = convert_image_tower({name: tensor.to(kind) for name, tensor in tuned.items()}, frozen)
    assert distance_moved(rounded, before) > 0


def test_what_comes_out_shares_nothing_with_the_frozen_tower(frozen: ImageTower) -> None:
    state = frozen.state_dict_open_clip()
    converted = convert_image_tower(state, state)
    assert all(converted.tensors[name].data_ptr() != state[name].data_ptr() for name in state)


Change = Callable[[State, State], State]


def _without(name: str) -> Change:
    return lambda tuned, before: {other: tensor for other, tensor in tuned.items() if name not in other}


def _with(name: str, make: Callable[[Tensor], Tensor]) -> Change:
    return lambda tuned, before: {**tuned, name: make(tuned[name])}


REFUSED: dict[str, tuple[Change, str]] = {
    "a tensor is missing": (_without("ln_post.bias"), "missing: ln_post.bias"),
    "many are missing": (_without(".attn.out_proj."), r"resblocks\.\*\.attn\.out_proj\.weight \(2 times\)"),
    "a tensor too many": (lambda tuned, _: {**tuned, "head.weight": torch.ones(2)}, "unexpected: head.weight"),
    "another shape": (_with("proj", lambda t: t[:, :4]), r"of another shape: proj \(32, 4\) instead of \(32, 16\)"),
    "not a number": (_with("proj", lambda t: t * float("nan")), "NaN or infinity in proj"),
    "infinity": (_with("ln_pre.bias", lambda t: t / 0), "NaN or infinity in ln_pre.bias"),
    "quantised": (_with("proj", lambda t: t.to(torch.int8)), "proj holds int8 numbers"),
    "no tower": (lambda *_: {"fc.weight": torch.ones(2)}, "no image tower of a CLIP was found.*fc.weight"),
    "nothing": (lambda *_: {}, "no tensor at all"),
    "a shard": (lambda tuned, _: {name: torch.empty(0) for name in tuned}, "DeepSpeed.*zero_to_fp32"),
    "two towers": (
        lambda tuned, _: {**tuned, "teacher.class_embedding": torch.ones(2)},
        "several image towers.*teacher",
    ),
    "no query": (
        lambda tuned, _: _without("layers.0.self_attn.q_proj.weight")(to_huggingface(tuned), {}),
        "missing: transformer.resblocks.0.attn.in_proj_weight; unexpected: encoder.layers.0.self_attn.k_proj.weight",
    ),
    "a difference": (lambda tuned, before: {n: t - before[n] for n, t in tuned.items()}, "a task vector"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str, frozen: ImageTower, tuned: State) -> None:
    spoil, complaint = REFUSED[case]
    with pytest.raises(TensorMismatch, match=complaint):
        convert_image_tower(spoil(tuned, frozen.state_dict_open_clip()), frozen)


def test_a_pickled_module_is_refused_with_the_way_out(tuned_clip: open_clip.CLIP, tmp_path: Path) -> None:
    path = tmp_path / "encoder.pt"
    torch.save(tuned_clip, path)
    with pytest.raises(UnreadableCheckpoint, match=r"pickled Python objects \(open_clip.*weights_only=False"):
        read_checkpoint(path)


class Trap:
    """An object whose pickle touches the file ``witness`` when it is loaded."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.witness,)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "plain"])
def test_no_code_of_a_file_is_run(zipped: bool, tmp_path: Path) -> None:
    witness, path = tmp_path / "ran", tmp_path / "trap.pt"
    torch.save({"state_dict": Trap(witness)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UnreadableCheckpoint, match="pickled Python objects"):
        read_checkpoint(path)
    assert not witness.exists()


def in_itself() -> dict[str, object]:
    circle: dict[str, object] = {}
    circle["model"] = circle
    return circle


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
INDEX = json.dumps({"weight_map": {"proj": "../elsewhere.safetensors"}}).encode()
UNREADABLE: dict[str, tuple[dict[str, bytes], str]] = {
    "truncated": ({"x.safetensors": save({"proj": torch.ones(100)})[:-50]}, "not a complete safetensors file"),
    "truncated file of torch": (
        {"x.pt": torch_file({"proj": torch.ones(1000)})[:-500]}, "not a (complete )?file of torch.save"
    ),
    "pointer": ({"x.safetensors": POINTER}, "git lfs pull"),
    "pointer to a file of torch": ({"x.bin": POINTER}, "git lfs pull"),
    "some pickle": ({"x.pt": pickle.dumps([1, 2])}, "torch.save did not write"),
    "damaged directory": (
        {"x.pt": b"PK\x01\x03".join(torch_file({"proj": torch.ones(2)}).rsplit(b"PK\x01\x02", 1))},
        "not a complete file of torch.save",
    ),
    "plain text": ({"x.pt": b"a text\n"}, "nor a file of torch.save"),
    "a list": ({"x.pt": torch_file([torch.ones(2)])}, "but a list"),
    "numbers only": ({"x.pt": torch_file({"epoch": 1, "model": {"lr": 0.1}})}, "but a mapping of epoch"),
    "nested in itself": ({"x.pt": torch_file(in_itself())}, "but a mapping of model"),
    "empty folder": ({}, "no checkpoint"),
    "two in a folder": ({"a.pt": b"", "b.pt": b""}, "2 checkpoints.*name one file"),
    "model and adapter": ({"model.safetensors": b"", "adapter_model.safetensors": b""}, "an adapter: name one file"),
    "index that leaves": ({"model.safetensors.index.json": INDEX}, "elsewhere.safetensors"),
    "shards of FSDP": ({"__0_0.distcp": b"", ".metadata": b""}, "dcp_to_torch FOLDER NEW.pt"),
    "shards of DeepSpeed": ({"zero_to_fp32.py": b"", "latest": b""}, "with its zero_to_fp32.py"),
    "cache of the hub": ({"snapshots/0a1b": b"", "refs": b""}, "name the folder in its snapshots"),
    "another kind": ({"x.zip": b""}, "it is empty"),
}  # fmt: skip
"""Case -> the files of a checkpoint (a single file is named ``x``), and the expected message."""


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_says_why(case: str, tmp_path: Path) -> None:
    files, says = UNREADABLE[case]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    only = next(iter(files), "")
    with pytest.raises(UnreadableCheckpoint, match=says):
        read_checkpoint(tmp_path / only if only.startswith("x.") else tmp_path)
    with pytest.raises(UnreadableCheckpoint, match="does not exist"):
        read_checkpoint(tmp_path / "absent.pt")


LIMITED = """
import resource, signal, sys
from pathlib import Path
import torch
from bolt.clip.tensor_files import save_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
try:
    save_tensors({"a": torch.zeros(100_000)}, Path(sys.argv[1]))
except OSError as error:
    print(error.errno, error.filename)
"""


def test_what_is_written_reads_back_and_everybody_may_read_it(tmp_path: Path) -> None:
    save_tensors({"a": torch.arange(3.0)}, tmp_path / "a.safetensors", {"note": "x"})
    assert torch.equal(load_file(tmp_path / "a.safetensors")["a"], torch.arange(3.0))
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_an_error_of_the_system(tmp_path: Path) -> None:
    """safetensors raises an exception of its own, which code that handles a full disk would not catch."""
    path = tmp_path / "a.safetensors"
    done = run_forked([str(path)], LIMITED)
    assert done.stdout.split() == [str(errno.EFBIG), str(path)], done.stderr


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        save_tensors({"a": torch.zeros(1)}, tmp_path / "nowhere" / "a.safetensors")
    assert caught.value.errno == errno.ENOENT
