"""Learned tokens in towers: their number, saving them with a model, and the towers that can have them."""

from pathlib import Path

import open_clip
import pytest
import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower_shape import UnsupportedTower
from bolt.methods import METHODS
from bolt.model.model import Model
from tests.helpers.adapting import run
from tests.helpers.towers import make_task, tokenize

METHODS_WITH_TOKENS = sorted(name for name, method in METHODS.items() if hasattr(method.settings_class, "depth"))


def wide_backbone() -> Backbone:
    """Return a CLIP with towers of ViT-B's width, with nine blocks and narrow feed-forward layers."""
    vision = {"image_size": 32, "patch_size": 32, "layers": 9, "width": 768, "mlp_ratio": 0.1}
    text = {"context_length": 16, "vocab_size": 64, "width": 512, "heads": 8, "layers": 9, "mlp_ratio": 0.1}
    return Backbone.from_open_clip(open_clip.CLIP(512, vision, text), tokenize, "wide")


def adapted_model(name: str, backbone: Backbone) -> tuple[Model, Tensor]:
    task = make_task(backbone)
    adapted, _ = run(name, task)
    return Model.from_adapted(backbone, adapted, ["a", "b", "c"]), task.support.pixels(0, torch.arange(5))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("maple", 3_555_072), ("promptsrc", 46_080)])
def test_the_trained_numbers_of_vit_b(name: str, count: int) -> None:
    tokens = METHODS[name].configure({}).tokens
    adapted, _ = run(name, make_task(wide_backbone(), shots=1), tokens=tokens, initial_words="a b c")
    assert adapted.trainable_parameters == count


@pytest.mark.parametrize("name", METHODS_WITH_TOKENS)
def test_a_saved_model_holds_the_tokens(name: str, backbone: Backbone) -> None:
    model, pixels = adapted_model(name, backbone)
    assert list(model.changed_tensors()) == ["prompts"]
    without = Model(backbone.tower, model.classifier, model.about)
    assert not torch.equal(without.logits(pixels), model.logits(pixels))


def test_transformers_has_no_such_tokens(backbone: Backbone, tmp_path: Path) -> None:
    model, _ = adapted_model("maple", backbone)
    with pytest.raises(ValueError, match="learned tokens"):
        model.save(tmp_path / "model", "huggingface")


def test_tokens_that_do_not_fit_are_refused(backbone: Backbone) -> None:
    for shape in ((3, 2, 32), (2, 2, 16), (2, 32)):
        with pytest.raises(TensorMismatch, match="2 blocks and width 32"):
            backbone.tower.with_prompts(torch.zeros(shape))
    with pytest.raises(TensorMismatch, match="1 blocks and width 16"):
        backbone.text_tower.with_prompts(torch.zeros(2, 1, 16))


@pytest.mark.parametrize("name", [*METHODS_WITH_TOKENS, "clipfit"])
def test_other_towers_are_refused_before_any_work(name: str) -> None:
    text = {"context_length": 16, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
    model = open_clip.CLIP(16, {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16}, text)
    task = make_task(Backbone.from_open_clip(model, tokenize, "resnet"))
    with pytest.raises(UnsupportedTower, match="no names" if name == "clipfit" else "a ModifiedResNet cannot take"):
        run(name, task)
    assert METHODS[name].clips_own_tower or name == "clipfit"


def test_bfloat16_gives_nearly_the_same_features(backbone: Backbone) -> None:
    tower = backbone.tower.with_prompts(torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(1)))
    images = backbone.normalise(make_task(backbone).support.pixels(0, torch.arange(4)))
    exact = tower(images)
    tower.precision = "bfloat16"
    torch.testing.assert_close(tower(images), exact, rtol=0.05, atol=0.05)
    assert not torch.allclose(backbone.tower(images), exact, atol=0.05)
