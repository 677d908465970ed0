"""Image towers other than plain vision transformers: features, preprocessing and texts are open_clip's own."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, center_crop_or_pad, image_transform_v2
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

import bolt
from bolt.clip.augment import evaluation_view
from bolt.clip.backbone import Backbone
from bolt.clip.feature_tower import FeatureTower, image_tower_of
from bolt.clip.input_size import InputSize, Interpolation, Resize
from bolt.clip.preprocess import evaluation_pixels, rgb_pixels
from bolt.clip.tower import ImageTower, matrix_modules
from bolt.clip.tower_shape import UnsupportedTower
from bolt.clip.whole_clip import clip_tokenizer, model_name
from bolt.methods import METHODS

TEXT = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
SIGLIP_TEXT = {**TEXT, "no_causal_mask": True, "proj_bias": True, "pool_type": "last"}


def of_timm(model: str, side: int, pool: str = "", projection: str = "linear") -> dict[str, Any]:
    return {
        "timm_model_name": model, "timm_model_pretrained": False, "timm_pool": pool, "timm_proj": projection,
        "image_size": side,
    }  # fmt: skip


FAMILIES: dict[str, dict[str, Any]] = {
    "ResNet": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16},
    "ConvNeXt": of_timm("convnext_atto", 64),
    "SigLIP": of_timm("vit_tiny_patch16_224", 224, "map", "none"),
    "EVA-02": of_timm("eva02_tiny_patch14_224", 224, "token"),
    "PE-Core": of_timm("vit_pe_core_tiny_patch16_384", 384, "map"),
    "MobileCLIP": of_timm("fastvit_t8", 64, "avg", ""),
    "ViTamin": of_timm("vitamin_small_224", 224),
    "CoCa": {"image_size": 32, "patch_size": 8, "width": 32, "layers": 1, "head_width": 16, "attentional_pool": True,
             "attn_pooler_heads": 2, "output_tokens": True},
}  # fmt: skip


def random_model(family: str) -> torch.nn.Module:
    """Return a small random model of a family. The text side of a SigLIP is not a causal transformer."""
    text = SIGLIP_TEXT if family == "SigLIP" else TEXT
    dims = {"SigLIP": 192}
    if family == "MobileCLIP":  # as in open_clip's own configuration, its head makes the features
        FAMILIES[family]["timm_proj"] = "linear"
    torch.manual_seed(0)
    return open_clip.CustomTextCLIP(dims.get(family, 32), FAMILIES[family], text).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_features_and_texts_are_open_clips(family: str) -> None:
    model: Any = random_model(family)
    backbone = Backbone.from_open_clip(model, open_clip.SimpleTokenizer(context_length=16), family)
    assert isinstance(backbone.tower, FeatureTower)
    side, generator = backbone.image_size, torch.Generator().manual_seed(1)
    pixels = torch.randint(256, (3, 3, side, side), generator=generator, dtype=torch.uint8)
    with torch.no_grad():
        theirs = model.encode_image(backbone.normalise(pixels))
        words = model.encode_text(backbone.tokenize(["a cat", "two dogs"]))
    found = theirs[0] if isinstance(theirs, tuple) else theirs
    torch.testing.assert_close(backbone.encode_images(pixels), found, rtol=0, atol=1e-5)
    torch.testing.assert_close(backbone.encode_prompts(["a cat", "two dogs"]), words, rtol=0, atol=1e-5)
    assert backbone.embed_dim == found.shape[1]
    assert backbone.digest == Backbone.from_open_clip(random_model(family), backbone.tokenize, family).digest


def test_text_towers_and_tokens_of_transformers_are_those_of_the_folder(tmp_path: Path) -> None:
    """As BiomedCLIP, which needed other weights of its text tower; tokens were those of a name on the hub.

    A repository of timm has the image tower alone in ``model.safetensors``, which was taken.
    """
    from transformers import BertConfig, PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1, "cat": 2, "dogs": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained(tmp_path)
    BertConfig(vocab_size=4, hidden_size=32, num_hidden_layers=1, num_attention_heads=2).save_pretrained(tmp_path)
    text = {"hf_model_name": str(tmp_path), "hf_tokenizer_name": "no/words", "hf_proj_type": "linear",
            "hf_pooler_type": "mean_pooler", "context_length": 8}  # fmt: skip
    config = {"embed_dim": 16, "vision_cfg": FAMILIES["ResNet"], "text_cfg": text}
    (tmp_path / "own.json").write_text(json.dumps(config))
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    model: Any = open_clip.create_model(f"local-dir:{tmp_path}", load_weights=False, pretrained_text=False).eval()
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    save_file({"cls_token": torch.ones(1)}, tmp_path / "model.safetensors")
    texts = ["a cat", "two dogs"]
    with torch.no_grad():
        theirs = model.encode_text(open_clip.get_tokenizer(f"local-dir:{tmp_path}")(texts))
    ours = bolt.load_backbone(tmp_path / "own.json", tmp_path).encode_prompts(texts)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    (tmp_path / "open_clip_config.json").write_text("{}")  # the architecture says that texts need a tokenizer
    assert clip_tokenizer("own", tmp_path)(texts).tolist() == [[1, 2, *[0] * 6], [1, 3, *[0] * 6]]


def test_a_name_says_nothing_about_tokens(tmp_path: Path) -> None:
    """open_clip gives the tokens of SigLIP to any model with ``siglip`` in its name, such as a folder's."""
    (tmp_path / "clip-siglip-loss.json").write_text(json.dumps({"embed_dim": 32, "vision_cfg": {}, "text_cfg": TEXT}))
    tokenize = clip_tokenizer(model_name(str(tmp_path / "clip-siglip-loss.json")))
    assert torch.equal(tokenize(["a cat"]), open_clip.SimpleTokenizer(context_length=16)(["a cat"]))


def test_whatever_asks_for_its_matrices_is_refused() -> None:
    """Earlier, LoRA trained nothing on a tower without named blocks, and gave no error."""
    tower = image_tower_of(random_model("ResNet"))
    with pytest.raises(UnsupportedTower, match="features only"):
        matrix_modules(tower)
    with pytest.raises(UnsupportedTower, match="ModifiedResNet"):
        tower.copy(trainable=["proj"])
    assert not any(parameter.requires_grad for parameter in tower.copy().parameters())


@pytest.mark.parametrize("resize", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_preprocessing_is_open_clips_bit_for_bit(resize: Resize, interpolation: Interpolation) -> None:
    ours = InputSize(32, resize, interpolation)
    mode: Literal["RGB"] = "RGB"
    config = PreprocessCfg(size=32, mode=mode, mean=(0, 0, 0), std=(1, 1, 1), interpolation=interpolation,
                           resize_mode=resize)  # fmt: skip
    transform, generator = image_transform_v2(config, is_train=False), np.random.default_rng(0)
    sides = [(32, 32), (33, 32), (31, 64), (7, 90), (90, 7), (1, 5), (200, 301), (32, 63), (65, 48), (500, 375)]
    for width, height in sides:
        image = Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
        theirs = transform(image).mul(255).round().to(torch.uint8)
        pixels = torch.from_numpy(evaluation_pixels(image, ours))
        assert torch.equal(pixels, theirs), (width, height)
        tensor = torch.from_numpy(rgb_pixels(image))
        resized = functional.resize(tensor, [*ours.resized(height, width)], InterpolationMode(interpolation))
        assert torch.equal(evaluation_view(tensor, ours), center_crop_or_pad(resized, 32)), (width, height)


def test_a_method_needs_matrices_where_it_changes_the_tower_or_reads_sources() -> None:
    needs = {name: method.needs_matrices(method.configure({})) for name, method in METHODS.items()}
    assert {"bolt", "lora", "atlas", "full_finetune", "layer_norm", "knots"} <= {name for name in needs if needs[name]}
    assert not any(needs[name] for name in ("tip_adapter", "coop", "zero_shot"))
    auto = METHODS["auto"]
    assert not auto.needs_matrices(auto.configure({"candidates": ("tip_adapter", "gda")}))
    assert auto.needs_matrices(auto.configure({"candidates": ("tip_adapter", "lora")}))


def test_a_plain_vision_transformer_keeps_its_named_matrices() -> None:
    visual = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16}
    backbone = Backbone.from_open_clip(open_clip.CLIP(32, visual, TEXT), open_clip.SimpleTokenizer(), "plain")
    assert type(backbone.tower) is ImageTower
    assert len(matrix_modules(backbone.tower)) == 2 * 4 + 1
