"""Checkpoints on disk as the sources of the library."""

import json
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import bolt
from bolt.clip.backbone import Backbone
from bolt.clip.checkpoint_files import UnreadableCheckpoint
from bolt.clip.huggingface import config_from_shape, to_huggingface
from bolt.clip.tensor_names import TensorMismatch, matrix_names
from bolt.model.checkpoint_sources import CheckpointSources
from bolt.spectral.directions import top_directions
from tests.bolt.model.pictures import IMAGES, LABELS, NAMES
from tests.helpers.towers import RandomSources, random_backbone


def test_checkpoints_on_disk_are_the_sources_they_hold(sources: CheckpointSources, backbone: Backbone) -> None:
    base, known = backbone.tower.state_dict_open_clip(), RandomSources(backbone, count=3)
    vectors = [{name: (base[name] + vector[name]) - base[name] for name in base} for vector in known.vectors.values()]
    assert sources.names == ("source_0", "source_1", "source_2")
    for name in matrix_names(base):
        mean = torch.stack([vector[name] for vector in vectors]).mean(dim=0)
        torch.testing.assert_close(sources.mean_task_vector(name), mean, rtol=1e-6, atol=1e-7)
        for asked in (2, 20):  # 20 are more than the first reading keeps
            for found, vector in zip(sources.directions(name, asked), vectors, strict=True):
                expected = top_directions(vector[name], asked)
                assert torch.equal(found.u, expected.u)
                assert torch.equal(found.s, expected.s)
    for source, vector in zip(sources.names, vectors, strict=True):
        assert all(torch.equal(sources.task_vector(source)[name], vector[name]) for name in base)


def test_a_pre_trained_tower_and_one_of_other_weights_are_no_sources(backbone: Backbone, tmp_path: Path) -> None:
    """Regression: ``zeroshot.pt``, which lies beside published checkpoints, was a source with nothing learned."""
    frozen = backbone.tower.state_dict_open_clip()
    torch.save({name: tensor.half() for name, tensor in frozen.items()}, tmp_path / "zeroshot.pt")
    torch.save({name: torch.randn_like(tensor) for name, tensor in frozen.items()}, tmp_path / "other.pt")
    with pytest.raises(TensorMismatch, match=r"zeroshot\.pt: this is the pre-trained tower itself.*leave_out"):
        bolt.load_sources(tmp_path, backbone).task_vector("zeroshot")
    with pytest.warns(UserWarning, match="norms from the pre-trained tower"):
        bolt.load_sources(tmp_path, backbone).task_vector("other")


def test_a_checkpoint_that_is_two_sources_is_noticed(checkpoints: Path, backbone: Backbone, tmp_path: Path) -> None:
    for name in ("source_0", "source_1"):
        shutil.copy(checkpoints / f"{name}.safetensors", tmp_path)
    shutil.copy(checkpoints / "source_0.safetensors", tmp_path / "copy.safetensors")
    with pytest.warns(UserWarning, match="copy and source_0 are the same checkpoint"):
        bolt.load_sources(tmp_path, backbone).file_digests()
    copied = bolt.load_sources(tmp_path, backbone)
    copied.task_vector("copy")
    with pytest.warns(UserWarning, match="copy and source_0 are the same checkpoint"):
        copied.task_vector("source_0")
    (tmp_path / "link.safetensors").symlink_to("source_1.safetensors")
    with pytest.warns(UserWarning, match="link and source_1 are the same checkpoint"):
        bolt.load_sources(tmp_path, backbone)


def test_a_source_can_be_left_out(checkpoints: Path, backbone: Backbone, tmp_path: Path) -> None:
    assert bolt.load_sources(checkpoints, backbone, leave_out=["source_1"]).names == ("source_0", "source_2")
    with pytest.raises(KeyError, match="source_9"):
        bolt.load_sources(checkpoints, backbone, leave_out=["source_9"])
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        bolt.load_sources(tmp_path, backbone)
    for name, size in (("cars.pth", 9), ("README.md", 9), ("dtd.pth.tar-50", 2**20)):
        (tmp_path / name).write_bytes(bytes(size))
    with pytest.warns(UserWarning, match=r"not used, because a checkpoint ends in .*: dtd\.pth\.tar-50$"):
        assert bolt.load_sources(tmp_path, backbone).names == ("cars",)
    (tmp_path / "dtd.pth.tar-50").unlink()
    (tmp_path / "logs").mkdir()
    with pytest.raises(UnreadableCheckpoint, match=r"logs holds no checkpoint.*leave_out=\['logs'\]"):
        bolt.load_sources(tmp_path, backbone).task_vector("logs")


def test_a_source_with_the_name_of_the_data_is_noted(backbone: Backbone, sources: CheckpointSources) -> None:
    with pytest.warns(UserWarning, match="source_0 is also a source's name"):
        bolt.adapt(backbone, IMAGES, LABELS, NAMES, method="bolt", sources=sources, name="source_0", epochs=1)


def test_the_configuration_of_a_source_is_compared_with_the_backbone(backbone: Backbone, tmp_path: Path) -> None:
    """Only ``sources adopt`` looked; the library used a tower of another activation."""
    (tmp_path / "cars").mkdir()
    hf = {**config_from_shape(backbone.tower.shape), "hidden_act": "quick_gelu"}
    (tmp_path / "cars" / "config.json").write_text(json.dumps(hf))
    near = {name: 1.01 * tensor for name, tensor in backbone.tower.state_dict_open_clip().items()}
    save_file(to_huggingface(near), tmp_path / "cars" / "model.safetensors")
    save_file(near | {"proj": torch.ones(3, 3)}, tmp_path / "wide.safetensors")
    found = bolt.load_sources(tmp_path, backbone)
    with pytest.raises(TensorMismatch, match=r"cars.config\.json.*activation 'quick_gelu', the backbone has 'gelu'"):
        found.task_vector("cars")
    llava = {"model_type": "llava", "vision_config": {**hf, "hidden_act": "gelu"}}
    for config in ({"lr": 1}, [1], {"model_cfg": {"depth": 12}}, llava):
        (tmp_path / "cars" / "config.json").write_text(json.dumps(config))
        assert found.task_vector("cars")
    for wrong in ({"layer_norm_eps": None}, {"num_attention_heads": "2"}, {"vision_config": [1], "hidden_act": "relu"}):
        (tmp_path / "cars" / "config.json").write_text(json.dumps({**hf, "hidden_act": "gelu", **wrong}))
        with pytest.raises(TensorMismatch, match=r"config\.json.*leave_out"):
            found.task_vector("cars")
    (tmp_path / "cars" / "model.safetensors").unlink()
    save_file(near, tmp_path / "cars" / "open_clip_model.safetensors")
    ours = {"quick_gelu": False, "vision_cfg": {"width": 32, "head_width": 16}, "text_cfg": {}}
    for change, complaint in (
        ({}, ""),
        ({"quick_gelu": True}, "activation"),
        ({"vision_cfg": {"width": 32}}, "heads 0"),
        ({"vision_cfg": None}, "leave_out"),
        ({"vision_cfg": {"head_width": 0}}, "leave_out"),
    ):
        (tmp_path / "cars" / "open_clip_config.json").write_text(json.dumps({"model_cfg": {**ours, **change}}))
        with pytest.raises((TensorMismatch, UnreadableCheckpoint), match=complaint) if complaint else nullcontext():
            found.task_vector("cars")
    with pytest.raises(TensorMismatch, match=r"wide\.safetensors: tensors do not fit.*leave_out"):
        found.task_vector("wide")


def test_sources_that_were_replaced_are_loaded_again(checkpoints: Path, backbone: Backbone, tmp_path: Path) -> None:
    """What was in memory was used: directions of the former file, beside whole task vectors of the new one."""
    shutil.copytree(checkpoints, tmp_path / "found")
    sources = bolt.load_sources(tmp_path / "found", backbone)
    adapt = partial(bolt.adapt, backbone, IMAGES, LABELS, NAMES, method="bolt_pooled", sources=sources)
    first, path = adapt().logits(IMAGES), next((tmp_path / "found").iterdir())
    assert torch.equal(adapt().logits(IMAGES), first)
    path.rename(tmp_path / path.name)
    assert torch.equal(adapt().logits(IMAGES), first)
    save_file({name: 1.01 * tensor for name, tensor in backbone.tower.state_dict_open_clip().items()}, path)
    with pytest.raises(ValueError, match=rf"{path.stem}.*load_sources"):
        adapt()


def test_sources_belong_to_their_backbone_and_none_is_lost(
    checkpoints: Path, backbone: Backbone, tmp_path: Path
) -> None:
    other = bolt.load_sources(checkpoints, random_backbone(quick_gelu=True))
    with pytest.raises(ValueError, match="another backbone"):
        bolt.adapt(backbone, IMAGES, LABELS, NAMES, sources=other)
    with pytest.raises(TypeError, match="load_sources"):
        bolt.adapt(backbone, IMAGES, LABELS, NAMES, sources=str(checkpoints))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"\['source_1'\]"):
        bolt.load_sources(checkpoints, backbone, leave_out="source_1")
    for name in ("cars.pt", "cars.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"cars\.pt and cars\.safetensors are both named cars"):
        bolt.load_sources(tmp_path, backbone)
