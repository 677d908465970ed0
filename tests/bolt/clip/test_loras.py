"""LoRAs as people have them: of peft, of CLIP-LoRA and of loralib, in files of their own and beside the weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bolt.clip.checkpoint_conversion import convert_image_tower
from bolt.clip.checkpoint_files import checkpoint_files
from bolt.clip.checkpoint_reading import Checkpoint, read_checkpoint
from bolt.clip.huggingface import to_huggingface
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower import ImageTower
from bolt.seeds import torch_generator
from tests.bolt.clip.conftest import State, convert, prefixed

BLOCK = "transformer.resblocks.0."


def pair(rows: int, columns: int, rank: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch_generator("lora")
    return torch.randn(rank, columns, generator=generator), torch.randn(rows, rank, generator=generator)


def peft(frozen: ImageTower, settings: dict[str, Any], path: Path) -> tuple[Path, Tensor]:
    """Write a LoRA of the first query matrix as peft does; return the folder and B @ A."""
    a, b = pair(32, 32)
    query = "base_model.model.vision_model.encoder.layers.0.self_attn.q_proj"
    text = query.replace("vision", "text")
    tensors = {f"{name}.lora_{side}.weight": t.clone() for name in (query, text) for side, t in (("A", a), ("B", b))}
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(settings))
    return path, b @ a


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"r": 2, "lora_alpha": 6}, 3.0),
        ({"r": 2, "lora_alpha": 6, "use_rslora": True}, 6 / 2**0.5),
        ({"r": 4, "lora_alpha": 6, "rank_pattern": {"q_proj": 2}}, 3.0),  # as EVA has it
        ({"r": 2, "lora_alpha": 1, "alpha_pattern": {"layers.0.self_attn.q_proj": 6, "proj": 9}}, 3.0),
        ({"r": 2, "lora_alpha": 1, "alpha_pattern": {"self.attn.q.proj": 6}}, 3.0),  # for peft, a dot is any character
    ],
)
def test_a_lora_of_peft_is_merged(settings: dict[str, Any], scale: float, frozen: ImageTower, tmp_path: Path) -> None:
    folder, change = peft(frozen, {"peft_type": "LORA", **settings}, tmp_path)
    found, before = convert_image_tower(read_checkpoint(folder), frozen), frozen.state_dict_open_clip()
    moved = found.tensors[BLOCK + "attn.in_proj_weight"] - before[BLOCK + "attn.in_proj_weight"]
    torch.testing.assert_close(moved[:32], scale * change)
    assert not moved[32:].any()
    assert "rank 2" in found.notes[0]
    assert "matrices of the text tower that were left out: 1" in found.notes[0]


@pytest.mark.parametrize("bare", ["vision_model.", "text_model."])
def test_a_lora_of_one_tower_of_transformers_5_has_no_prefix(bare: str, frozen: ImageTower, tmp_path: Path) -> None:
    """Both were refused, although a ``CLIPVisionModel`` is what most people adapt; peft states which class it was."""
    settings = {"r": 2, "lora_alpha": 6, "auto_mapping": {"base_model_class": "CLIPTextModel"}}
    folder, change = peft(frozen, settings if bare == "text_model." else {"r": 2, "lora_alpha": 6}, tmp_path)
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors = {name.replace(bare, ""): tensor for name, tensor in tensors.items() if bare in name}
    tensors["base_model.model.post_layernorm.bias"] = torch.ones(32)
    save_file(tensors, folder / "adapter_model.safetensors")
    if bare == "text_model.":
        with pytest.raises(TensorMismatch, match=r"encoder\.layers\.0\.self_attn\.q_proj is no matrix of this CLIP"):
            convert_image_tower(read_checkpoint(folder), frozen)
        return
    found, before = convert_image_tower(read_checkpoint(folder), frozen), frozen.state_dict_open_clip()
    moved = found.tensors[BLOCK + "attn.in_proj_weight"] - before[BLOCK + "attn.in_proj_weight"]
    torch.testing.assert_close(moved[:32], 3 * change)
    assert found.tensors["ln_post.bias"].eq(1).all()


def test_a_lora_of_the_visual_tower_of_open_clip_has_no_prefix(frozen: ImageTower) -> None:
    """It was refused, although ``get_peft_model(clip.visual, ...)`` leaves the text tower alone."""
    matrix, (a, b) = f"{BLOCK}mlp.c_fc", pair(128, 32)
    tensors = prefixed("base_model.model.", {f"{matrix}.lora_A.weight": a, f"{matrix}.lora_B.weight": b})
    settings = {"r": 2, "lora_alpha": 4, "auto_mapping.base_model_class": "VisionTransformer"}
    found, before = convert_image_tower(Checkpoint(tensors, settings), frozen), frozen.state_dict_open_clip()
    torch.testing.assert_close(found.tensors[f"{matrix}.weight"] - before[f"{matrix}.weight"], 2 * b @ a)
    with pytest.raises(TensorMismatch, match=r"c_fc is no matrix of this CLIP"):  # it may be one of the text tower
        convert_image_tower(Checkpoint(tensors, {"r": 2, "lora_alpha": 4}), frozen)


def test_the_scale_of_a_lora_is_part_of_its_identity(frozen: ImageTower, tmp_path: Path) -> None:
    assert [file.name for file in checkpoint_files(peft(frozen, {}, tmp_path)[0])][1] == "adapter_config.json"


MADE_OTHERWISE = {name: {"r": 2, "lora_alpha": 2, "init_lora_weights": name}
                  for name in ("pissa", "pissa_niter_16", "olora", "corda", "loftq")}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, r"LoRA.*merge_and_unload"),
        ({"r": 4, "lora_alpha": 1}, r"LoRA.*merge_and_unload"),
        ({"r": 2, "lora_alpha": 1, "alpha_pattern": {r".*\.[qv]_proj": 3}}, r"LoRA.*merge_and_unload"),
        ({"r": 2, "lora_alpha": 1, "alpha_pattern": {"(": 3}}, r"LoRA.*merge_and_unload"),
        ({"r": 4, "lora_alpha": 1, "alpha_pattern": {"q_proj": 3}}, "another rank"),
        ({"r": 2, "lora_alpha": 1, "rank_pattern": {"q_proj": 4}}, "another rank"),
        *((settings, f"init_lora_weights is '{name}'") for name, settings in MADE_OTHERWISE.items()),
    ],
)
def test_a_lora_of_unknown_scale_or_of_changed_weights_is_refused(
    settings: dict[str, Any], says: str, frozen: ImageTower, tmp_path: Path
) -> None:
    with pytest.raises(TensorMismatch, match=says):
        convert_image_tower(read_checkpoint(peft(frozen, settings, tmp_path)[0]), frozen)


def test_another_adapter_of_peft_is_called_one(frozen: ImageTower, tmp_path: Path) -> None:
    folder, _ = peft(frozen, {"peft_type": "VERA"}, tmp_path)
    layer = "base_model.model.vision_model.encoder.layers.0.self_attn.q_proj"
    save_file({f"{layer}.vera_lambda_b": torch.ones(32)}, folder / "adapter_model.safetensors")
    with pytest.raises(TensorMismatch, match=r"peft_type is VERA.*merge_and_unload"):
        convert_image_tower(read_checkpoint(folder), frozen)


@pytest.mark.parametrize("kind", ["LORA", "VERA", None])
def test_a_whole_tower_in_the_file_of_an_adapter_is_read(
    kind: str | None, frozen: ImageTower, tuned: State, tmp_path: Path
) -> None:
    """Regression: that of a LoRA was refused as one that changes the text tower only."""
    folder, _ = peft(frozen, {"peft_type": kind}, tmp_path)
    save_file(tuned, folder / "adapter_model.safetensors")
    tower = convert_image_tower(read_checkpoint(folder), frozen)
    assert all(torch.equal(tower.tensors[name], tensor) for name, tensor in tuned.items())


def test_a_lora_beside_its_weights_is_merged(frozen: ImageTower, tuned: State, tmp_path: Path) -> None:
    a, b = pair(128, 32)
    own = f"visual.{BLOCK}mlp.c_fc"
    state = {
        (n.replace("c_fc.", "c_fc.base_layer.") if own in n else n): t for n, t in prefixed("visual.", tuned).items()
    }
    state |= {f"{own}.lora_A.default.weight": a, f"{own}.lora_B.default.weight": b}
    found = convert({"model": state, "lora": {"r": 2, "lora_alpha": 1}}, tmp_path / "x.pt", frozen)
    expected = tuned[BLOCK + "mlp.c_fc.weight"] + 0.5 * b @ a
    torch.testing.assert_close(found.tensors[BLOCK + "mlp.c_fc.weight"], expected)
    assert torch.equal(found.tensors["proj"], tuned["proj"])


def test_an_alpha_of_something_else_is_no_scale(frozen: ImageTower, tuned: State) -> None:
    """The ``alpha`` of a mixup beside the process's ``rank``, and the last of several, were taken in silence."""
    a, b = pair(128, 32)
    whole = tuned | {f"{BLOCK}mlp.c_fc.lora_A": a, f"{BLOCK}mlp.c_fc.lora_B": b}
    mixup = {"args.alpha": 0.2, "args.rank": 0}
    found = convert_image_tower(Checkpoint(whole, mixup | {"args.lora.alpha": 4, "args.lora.r": 2}), frozen)
    moved = found.tensors[f"{BLOCK}mlp.c_fc.weight"] - tuned[f"{BLOCK}mlp.c_fc.weight"]
    torch.testing.assert_close(moved, 2 * b @ a)
    several = {"vision.lora_alpha": 4, "text.lora_alpha": 8}
    for settings, says in (
        (mixup, "states its scale"),
        (several, "several scales: vision.lora_alpha, text.lora_alpha"),
    ):
        with pytest.raises(TensorMismatch, match=says):
            convert_image_tower(Checkpoint(whole, settings), frozen)


@pytest.mark.parametrize("encoder", ["vision", "both", "text"])
def test_clip_lora_is_merged_into_the_image_tower(encoder: str, frozen: ImageTower, tmp_path: Path) -> None:
    a, b = pair(32, 32)
    layers = {
        f"layer_{i}": {"v_proj": {"w_lora_A": a, "w_lora_B": b * (i + 1)}} for i in range(5 if encoder == "both" else 2)
    }
    content = {"weights": layers, "metadata": {"r": 2, "alpha": 1, "encoder": encoder, "position": "all"}}
    if encoder == "text":
        with pytest.raises(TensorMismatch, match="LoRA"):
            convert(content, tmp_path / "x.pt", frozen)
        return
    found, before = convert(content, tmp_path / "x.pt", frozen), frozen.state_dict_open_clip()
    for block in range(2):
        name = f"transformer.resblocks.{block}.attn.in_proj_weight"
        moved, factor = (found.tensors[name] - before[name])[64:], block + (4 if encoder == "both" else 1)
        torch.testing.assert_close(moved, factor / 2**0.5 * b @ a)


def test_two_loras_of_one_matrix_are_not_added(frozen: ImageTower) -> None:
    """Regression: the LoRAs of a teacher and a student were both merged into the tower."""
    a, b = pair(32, 32)
    query = "vision_model.encoder.layers.0.self_attn.q_proj.lora"
    both = {f"{of}.{query}_{side}": t for of in ("teacher", "student") for side, t in (("A", a), ("B", b))}
    once = {f"{query}_A": a, f"{query}_B": b}
    same = [convert_image_tower(Checkpoint(each, {"r": 2, "lora_alpha": 2}), frozen).tensors for each in (both, once)]
    assert all(torch.equal(same[0][name], tensor) for name, tensor in same[1].items())
    both[f"student.{query}_B"] = 2 * b
    with pytest.raises(TensorMismatch, match="several adapters"):
        convert_image_tower(Checkpoint(both, {"r": 2, "lora_alpha": 2}), frozen)


def test_a_lora_of_a_whole_attention_layer_is_refused(frozen: ImageTower) -> None:
    """peft adds the product of ``out_proj`` twice, in training too (huggingface/peft, pull request 3774)."""
    attention = f"base_model.model.visual.{BLOCK}attn"
    pairs = {attention: pair(96, 32), f"{attention}.out_proj": pair(32, 32)}
    tensors = {f"{name}.lora_{'AB'[i]}.weight": both[i] for name, both in pairs.items() for i in range(2)}
    with pytest.raises(TensorMismatch, match=r"attn\.out_proj once or twice.*merge_and_unload"):
        convert_image_tower(Checkpoint(tensors, {"r": 2, "lora_alpha": 2}), frozen)


def test_a_lora_of_loralib_is_called_one(frozen: ImageTower, tuned: State) -> None:
    a, b = pair(128, 32)
    with pytest.raises(TensorMismatch, match=r"LoRA.*states its scale"):
        convert_image_tower(tuned | {f"{BLOCK}mlp.c_fc.lora_A": a, f"{BLOCK}mlp.c_fc.lora_B": b}, frozen)


def test_what_a_lora_trained_as_a_whole_is_used(frozen: ImageTower, tmp_path: Path) -> None:
    """peft writes biases (``bias="all"``) and whole modules (``modules_to_save``) beside A and B; they were dropped."""
    folder, _ = peft(frozen, {"r": 2, "lora_alpha": 2, "base_model_name_or_path": "a/b"}, tmp_path)
    hf, above = to_huggingface(frozen.state_dict_open_clip()), "base_model.model."
    bias = "vision_model.encoder.layers.1.mlp.fc1.bias"
    trained = {bias: hf[bias] + 1, "visual_projection.weight": hf["visual_projection.weight"] + 1}
    tensors = load_file(folder / "adapter_model.safetensors") | prefixed(above, trained)
    save_file(tensors | {f"{above}classifier.weight": torch.ones(3, 3)}, folder / "adapter_model.safetensors")
    found, before = convert_image_tower(read_checkpoint(folder), frozen), frozen.state_dict_open_clip()
    for name in ("transformer.resblocks.1.mlp.c_fc.bias", "proj"):
        torch.testing.assert_close(found.tensors[name], before[name] + 1)
    assert "tensors outside the image tower that were left out: 1" in found.notes[0]
    assert "trained on a/b" in found.notes[0]
    save_file(tensors | {f"{above}vision_model.other.weight": torch.ones(3)}, folder / "adapter_model.safetensors")
    with pytest.raises(TensorMismatch, match=r"vision_model\.other\.weight is no tensor of this CLIP"):
        convert_image_tower(read_checkpoint(folder), frozen)


@pytest.mark.parametrize("settings", [{}, {"lora_alpha": 4}])
def test_a_lora_that_is_in_the_weights_already_is_not_merged_twice(
    settings: dict[str, Any], frozen: ImageTower, tmp_path: Path
) -> None:
    """loralib's ``eval()`` merges, and A and B stay in the ``state_dict``."""
    a, b = pair(128, 32)
    own, state = f"{BLOCK}mlp.c_fc", frozen.state_dict_open_clip()
    merged = state | {f"{own}.weight": state[f"{own}.weight"] + 2 * b @ a}
    content = {"state_dict": merged | {f"{own}.lora_A": a, f"{own}.lora_B": b}, **settings}
    found = convert(content, tmp_path / "x.pt", frozen)
    assert all(torch.equal(found.tensors[name], merged[name]) for name in merged)
    assert "matrices of a LoRA that were merged into the weights already: 1" in found.notes[0]
