"""Vision transformers of timm (SigLIP, PE-Core, EVA-02) that methods train by the names of their matrices."""

from functools import cache
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.timm_model import TimmModel
from torch import Tensor, nn

from bolt.clip.backbone import Backbone
from bolt.clip.checkpoint_conversion import convert_image_tower
from bolt.clip.checkpoint_reading import Checkpoint
from bolt.clip.feature_tower import FeatureTower, TimmTower
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower import matrix_modules
from bolt.clip.tower_shape import UnsupportedTower
from bolt.methods import METHODS
from bolt.methods.bitfit import bias_names
from bolt.methods.lora import trainable_adapters
from bolt.model.loading import UnreadableModel, load_model
from bolt.model.model import Model
from bolt.protocol import PUBLISHED
from tests.helpers.adapting import adapt, run
from tests.helpers.quick_settings import quick_settings
from tests.helpers.timm_trunks import TRUNKS
from tests.helpers.towers import SIZE, make_task, random_clip, tokenize

ADAPTING = sorted(
    (name, track)
    for name, method in METHODS.items()
    for track in ("fewshot", "tta")
    if track in method.tracks and method.changes_tower and name != "auto" and not method.clips_own_tower
)


def random_model(family: str, **changes: Any) -> open_clip.CLIP:
    model = random_clip()
    torch.manual_seed(0)
    visual = TimmModel("small_siglip", embed_dim=16, image_size=SIZE, pool="map", proj="none")
    visual.trunk = TRUNKS[family](num_classes=0 if family == "siglip" else 16, **changes)
    for parameter in visual.parameters():  # no bias is zero, so every part of the network has an effect
        nn.init.trunc_normal_(parameter, std=0.05) if parameter.ndim > 1 else parameter.data.add_(0.02)
    model.visual = visual
    return model.eval()


@cache
def random_backbone(family: str) -> Backbone:
    return Backbone.from_open_clip(random_model(family), tokenize, family)


@pytest.fixture(params=TRUNKS, scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return random_backbone(request.param)


def some_pixels(count: int = 3) -> Tensor:
    return torch.randint(256, (count, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def test_every_matrix_has_its_name_and_computes_the_features(backbone: Backbone) -> None:
    tower = backbone.tower
    assert isinstance(tower, TimmTower)
    linear = [name for name, part in tower.visual.named_modules() if isinstance(part, nn.Linear)]
    assert [f"{name}.weight" for name in linear] == list(matrix_modules(tower))
    assert len(linear) >= 2 * 4
    before = backbone.encode_images(some_pixels())
    for name in matrix_modules(tower):
        changed = tower.copy(trainable=[name])
        with torch.no_grad():
            matrix_modules(changed)[name].weight.mul_(1.5)
        assert not torch.equal(backbone.encode_images(some_pixels(), changed), before), name
    assert torch.equal(backbone.encode_images(some_pixels()), before)
    assert tower.state_dict_open_clip().keys() == tower.visual.state_dict().keys()
    width = 16 if backbone.name == "siglip" else 32
    assert (tower.shape.layers, tower.shape.width, tower.shape.patch_size) == (2, width, 8)


@pytest.mark.parametrize(
    ("name", "track", "backbone"),
    [
        (name, track, family)
        for turn, family in enumerate(TRUNKS)
        for place, (name, track) in enumerate(ADAPTING)
        if turn == place % len(TRUNKS) or name in ("bolt", "full_finetune", "lora")
    ],
    indirect=["backbone"],
)
def test_methods_that_change_towers_do(name: str, track: str, backbone: Backbone) -> None:
    method = METHODS[name]
    settings = method.configure(quick_settings(method.name), "fewshot" if track == "fewshot" else "tta")
    adapted = method.adapt(make_task(backbone, unlabelled=track != "fewshot"), settings)
    assert adapted.tower is not None
    features = backbone.encode_images(some_pixels(), adapted.tower)
    assert torch.isfinite(features).all()
    assert not torch.equal(features, backbone.encode_images(some_pixels()))


def test_adapters_sit_on_all_parts_of_each_block(backbone: Backbone) -> None:
    settings = METHODS["lora"].configure({"rank": 2})
    for published in (False, True):
        task = make_task(backbone, protocol=PUBLISHED)
        parameters = trainable_adapters(task, settings, published=published).parameters
        assert len(parameters) >= 2 * 2 * 6  # q, k, v, out and the two of the MLP, A and B, in two blocks
    names = bias_names(backbone.tower.state_dict_open_clip())
    assert {part for part in ("norm", "attn", "mlp") if any(part in name for name in names)} == {"norm", "attn", "mlp"}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("eva02", {"qkv_fused": True}),
        ("siglip", {"proj_drop_rate": 0.1}),
        ("siglip", {"drop_path_rate": 0.1}),
        ("siglip", {"patch_drop_rate": 0.5}),
    ],
)
def test_a_tower_that_passes_a_matrix_by_or_draws_is_frozen(family: str, changes: dict[str, Any]) -> None:
    """EVA-02 with fused query-key-value reads the weight without calling the module: a LoRA would train nothing."""
    tower = Backbone.from_open_clip(random_model(family, **changes), tokenize, family).tower
    assert isinstance(tower, FeatureTower)
    assert not isinstance(tower, TimmTower)


def test_prolip_says_what_it_lacks(backbone: Backbone) -> None:
    with pytest.raises(UnsupportedTower, match="projection"):
        run("prolip", make_task(backbone))


@pytest.mark.parametrize("form", ["adapter", "state_dict"])
def test_a_model_is_saved_in_open_clips_own_names(form: Any, backbone: Backbone, tmp_path: Path) -> None:
    adapted = run("bolt", make_task(backbone))[0]
    model = Model.from_adapted(backbone, adapted, ["a", "b", "c"])
    with pytest.raises(ValueError, match="transformers has no CLIP"):
        model.save(tmp_path / "other", "huggingface")
    model.save(tmp_path / "model", form, with_basis=True)
    again = load_model(tmp_path / "model", backbone)
    torch.testing.assert_close(again.logits(some_pixels()), model.logits(some_pixels()), rtol=0, atol=1e-4)
    if form == "adapter":
        return
    with pytest.raises(UnreadableModel, match="backbone"):
        load_model(tmp_path / "model")
    theirs = random_model(backbone.name)
    theirs.visual.load_state_dict(model.tower.state_dict_open_clip())
    with torch.no_grad():
        features = theirs.encode_image(backbone.normalise(some_pixels()))
    assert torch.equal(features, backbone.encode_images(some_pixels(), adapted.tower))


def test_a_tower_with_a_projection_behind_the_trunk_is_read_back(tmp_path: Path) -> None:
    """Its tensor comes first in the file, so the tower was taken for CLIP's own, and ``load_model`` failed."""
    model = random_model("siglip")
    model.visual.head.add_module("proj", nn.Linear(16, 16, bias=False))
    backbone = Backbone.from_open_clip(model, tokenize, "projected")
    adapted = run("bolt", make_task(backbone))[0]
    Model.from_adapted(backbone, adapted, ["a", "b", "c"]).save(tmp_path / "model", form="state_dict")
    found = load_model(tmp_path / "model", backbone)
    features = (backbone.encode_images(some_pixels(), tower) for tower in (found.tower, adapted.tower))
    assert torch.equal(*features)


def test_a_fine_tuned_checkpoint_is_a_source(backbone: Backbone) -> None:
    state = backbone.tower.state_dict_open_clip()
    tuned = {f"model.visual.{name}": 1.01 * tensor for name, tensor in state.items()}
    settings = {"peft_type": "VERA"}  # such a tower in the file of an adapter was refused as a LoRA
    converted = convert_image_tower(Checkpoint(tuned | {"model.logit_scale": torch.ones(())}, settings), backbone.tower)
    assert all(torch.equal(converted.tensors[name], 1.01 * tensor) for name, tensor in state.items())
    with pytest.raises(TensorMismatch, match="no image tower"):
        convert_image_tower(random_clip().state_dict(), backbone.tower)
    with pytest.raises(TensorMismatch, match="task vector"):
        convert_image_tower({name: 0.01 * tensor for name, tensor in state.items()}, backbone.tower)


def test_adapted_towers_are_plain(backbone: Backbone) -> None:
    adapted = adapt("lora", make_task(backbone), epochs=1)
    assert [type(part) for part in adapted.tower.modules()] == [type(part) for part in backbone.tower.modules()]
