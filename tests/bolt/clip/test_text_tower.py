"""The text tower computes what open_clip computes, from token embeddings, and can be differentiated."""

import gc
import weakref
from typing import Any

import open_clip
import pytest
import torch
from torch import Tensor, nn

from bolt.clip import text_tower
from bolt.clip.backbone import Backbone
from bolt.clip.text_tower import TextTower
from bolt.clip.tower_shape import UnsupportedTower
from tests.helpers.towers import random_backbone, random_clip, tokenize

PROMPTS = ["a", "some longer words", "two words"]


def encode(tower: TextTower, tokens: Tensor) -> Tensor:
    result: Tensor = tower(tower.embed(tokens), tokens.argmax(dim=-1))
    return result


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_text_embeddings_and_gradients_equal_open_clips_to_the_last_digits(quick_gelu: bool) -> None:
    model, tokens = random_clip(quick_gelu=quick_gelu).double(), tokenize(PROMPTS)
    model.token_embedding.requires_grad_()
    expected = model.encode_text(tokens)
    tower = TextTower.from_open_clip(model)
    embeddings = tower.embed(tokens).requires_grad_()
    found = tower(embeddings, tokens.argmax(dim=-1))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for output in (expected, found):
        output.square().sum().backward()
    own = torch.zeros_like(model.token_embedding.weight)
    assert embeddings.grad is not None
    own.index_put_((tokens,), embeddings.grad, accumulate=True)
    torch.testing.assert_close(own, model.token_embedding.weight.grad)
    assert not any(tensor.requires_grad for tensor in tower.parameters())


@torch.no_grad()
def test_a_model_with_a_text_tower_of_its_own_gives_the_same() -> None:
    text = {"context_length": 16, "vocab_size": 64, "width": 16, "heads": 2, "layers": 2}
    vision = {"image_size": 32, "patch_size": 8, "layers": 1, "width": 32, "head_width": 16}
    model = open_clip.CustomTextCLIP(8, vision, text).eval()
    tokens = tokenize(PROMPTS)
    torch.testing.assert_close(encode(TextTower.from_open_clip(model), tokens), model.encode_text(tokens))


def test_many_prompts_in_parts_give_the_same_embeddings_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    tower, tokens = TextTower.from_open_clip(random_clip().double()), tokenize(PROMPTS * 3)
    found = []
    for at_once in (256, 4):
        monkeypatch.setattr(text_tower, "PROMPTS_AT_ONCE", at_once)
        embeddings = tower.embed(tokens).requires_grad_()
        encoded = tower(embeddings, tokens.argmax(dim=-1))
        encoded.square().sum().backward()
        found.append((encoded.detach(), embeddings.grad))
    torch.testing.assert_close(found[0], found[1])


def test_it_shares_the_tensors_of_the_model_and_so_does_a_copy() -> None:
    model = random_clip()
    tower = TextTower.from_open_clip(model)
    assert tower.token_embedding.weight.data_ptr() == model.token_embedding.weight.data_ptr()
    pairs = zip(tower.parameters(), tower.copy().parameters(), strict=True)
    assert all(one is other for one, other in pairs)


def test_the_backbone_makes_it_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    original, made = TextTower.from_open_clip, []

    def counted(model: nn.Module) -> TextTower:
        made.append(model)
        return original(model)

    monkeypatch.setattr(TextTower, "from_open_clip", counted)
    backbone = random_backbone()
    backbone.zero_shot_head(["cat", "dog"], ["a {}"])
    assert not made
    assert backbone.text_tower is backbone.text_tower
    assert len(made) == 1
    torch.testing.assert_close(encode(backbone.text_tower, tokenize(PROMPTS)), backbone.encode_prompts(PROMPTS))


def test_the_text_tower_stays_where_it_is_until_it_is_used() -> None:
    backbone: Backbone = random_backbone().to("meta")
    text = backbone._text()
    assert backbone.device.type == "meta"
    assert {tensor.device.type for name, tensor in text.named_parameters()} == {"cpu"}
    assert backbone.text_tower.positional_embedding.device.type == "meta"


def test_a_backbone_that_can_load_its_model_again_keeps_no_text_side() -> None:
    loaded: list[weakref.ref[nn.Module]] = []

    def load_again() -> open_clip.CLIP:
        model = random_clip()
        loaded.append(weakref.ref(model))
        return model

    kept = Backbone.from_open_clip(random_clip(), tokenize, "tiny")
    backbone = Backbone.from_open_clip(load_again(), tokenize, "tiny", load_again=load_again)
    assert torch.equal(backbone.encode_prompts(PROMPTS), kept.encode_prompts(PROMPTS))
    gc.collect()
    assert [model() for model in loaded] == [None, None]
    assert backbone.text_tower is backbone.text_tower
    assert len(loaded) == 3


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [("attn_mask", None, "causal"), ("text_pool_type", "last", "end token"), ("text_projection", None, "projection")],
)
def test_another_architecture_is_refused_by_name(part: str, value: Any, named: str) -> None:
    model = random_clip()
    setattr(model, part, value)
    with pytest.raises(UnsupportedTower, match=named):
        TextTower.from_open_clip(model)
    with pytest.raises(UnsupportedTower, match="Linear"):
        TextTower.from_open_clip(nn.Linear(2, 2))
