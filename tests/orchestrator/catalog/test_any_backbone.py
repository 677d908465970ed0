"""Models as backbones: of open_clip, transformers and timm, and one that gives features only from end to end."""

import json
from pathlib import Path
from shutil import copyfile
from typing import Any

import open_clip
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file, save_file
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer
from torch.nn import Module
from typer.testing import CliRunner

import bolt
import tests.helpers.timm_trunks  # noqa: F401
from bolt.clip.checkpoint_conversion import convert_image_tower
from bolt.clip.siglip import siglip_config
from orchestrator.artifacts.load_backbone import fetch_weights, has_weights, load_backbone
from orchestrator.catalog import BackboneEntry, backbone_ref, load_catalog, missing_weights
from orchestrator.catalog.backbone_entry import Weights
from orchestrator.catalog.text_sizes import download_bytes
from orchestrator.cli.app import app
from orchestrator.grid import load_grid
from orchestrator.sharing.grid_listing import absent_files
from orchestrator.util.errors import UserError
from tests.conftest import GiveDatabase
from tests.helpers.command import invoke
from tests.helpers.image_folders import write_image_folders

CONFIG = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a catalog of three image folders and a random ResNet CLIP, which the command has added."""
    folder = tmp_path_factory.mktemp("resnet")
    write_image_folders(folder)
    (folder / "small.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(0)
    save_file(dict(open_clip.CLIP(**CONFIG).state_dict()), folder / "small.safetensors")
    words = ("--name", "resnet", "--gelu", "--catalog", folder / "own.yaml")
    invoke("backbones", "add", folder / "small.json", "--file", folder / "small.safetensors", *words)
    return folder


def grid(folder: Path, *methods: str) -> list[str]:
    block = {
        "track": "fewshot", "backbones": ["resnet"], "datasets": ["shades"], "shots": [1], "seeds": [1],
        "methods": [{"auto": {"candidates": ["tip_adapter", "gda"]}} if name == "auto" else name for name in methods],
    }  # fmt: skip
    (folder / "grid.yaml").write_text(yaml.safe_dump({"title": "x", "protocol": "strict", "blocks": [block]}))
    return [str(folder / "grid.yaml"), *write_image_folders(folder), "--store", str(folder / "store")]


def test_a_resnets_activation_is_that_of_its_text_side(resnet: Path) -> None:
    """OpenAI's RN50 was trained with QuickGELU, and only the text tower has an activation that can be one."""
    gelu = load_catalog([resnet / "own.yaml"]).backbone("resnet")
    quick = gelu.model_copy(update={"quick_gelu": True})
    backbones = [load_backbone(entry, "cpu") for entry in (gelu, quick)]
    assert [backbone.activation for backbone in backbones] == ["gelu", "quick_gelu"]
    words = [backbone.encode_prompts(["a cat"]) for backbone in backbones]
    assert not torch.equal(*words)


def add(folder: Path, *words: str) -> BackboneEntry:
    """Add a folder's model to a catalog by the command; returns its entry."""
    catalog = folder.parent / "catalog.yaml"
    invoke("backbones", "add", folder, "--name", "theirs", "--catalog", catalog, *words)
    return load_catalog([catalog]).backbone("theirs")


def randomised(model: Any) -> Any:
    """Return a model of transformers with all its parameters moved, also those that begin as zeros and ones."""
    for parameter in model.eval().parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def assert_features_of_transformers(entry: BackboneEntry, model: Any, of_images: Module, of_words: Module) -> None:
    backbone, texts = load_backbone(entry, "cpu"), ["a cat", "a very small dog"]
    pixels = torch.randint(256, (4, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    with torch.no_grad():
        images = of_images(model.vision_model(pixel_values=backbone.normalise(pixels)).pooler_output)
        words = of_words(model.text_model(input_ids=backbone.tokenize(texts)).pooler_output)
    torch.testing.assert_close(backbone.encode_images(pixels), images, rtol=0, atol=1e-5)
    torch.testing.assert_close(backbone.encode_prompts(texts), words, rtol=0, atol=1e-5)
    assert backbone.logit_scale == pytest.approx(model.logit_scale.exp().item(), rel=1e-6)


@pytest.mark.parametrize(("activation", "prefix"), [("gelu", ""), ("quick_gelu", "model.")])
def test_a_folder_of_transformers_is_a_backbone(activation: str, prefix: str, tmp_path: Path) -> None:
    """With a prefix, as Lightning writes one, it was called one tower."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    layers = {"hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    towers = {**layers, "hidden_act": activation}
    text = {**towers, "max_position_embeddings": 16, "eos_token_id": 49407, "bos_token_id": 49406}
    vision = {**towers, "image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    model = randomised(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)))
    model.save_pretrained(tmp_path / "theirs")
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "theirs" / "model.safetensors")
    squash = {"size": {"height": 32, "width": 32}, "do_center_crop": False}
    CLIPImageProcessor(**squash, image_mean=[0.5] * 3, image_std=[0.25] * 3).save_pretrained(tmp_path / "theirs")
    entry = add(tmp_path / "theirs")
    assert (entry.resize, entry.mean, entry.std) == ("squash", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert entry.quick_gelu == (activation == "quick_gelu")
    assert_features_of_transformers(entry, model, model.visual_projection, model.text_projection)


@register_model  # type: ignore[untyped-decorator]
def vit_test_patch8_siglip_32(pretrained: bool = False, *, global_pool: str, **_: Any) -> VisionTransformer:
    """A SigLIP tower of timm, small enough for a test."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    kinds = {"class_token": False, "act_layer": "gelu_tanh", "norm_layer": "layernorm", "num_classes": 0}
    return VisionTransformer(global_pool=global_pool, **kinds, **sizes)


def test_a_folder_of_a_siglip_of_transformers_is_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**layers, "vocab_size": 49408, "max_position_embeddings": 16, "projection_size": 32}
    vision = {**layers, "image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    model = randomised(SiglipModel(SiglipConfig(text_config=text, vision_config=vision)))
    model.save_pretrained(tmp_path / "theirs")
    SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "theirs")
    with pytest.raises(UserError, match="no SigLIP with images of 32, patches of 8"):
        add(tmp_path / "theirs")
    own = {
        "embed_dim": 32, "init_logit_bias": -10, "custom_text": True,
        "vision_cfg": {"image_size": 32, "timm_model_name": "vit_test_patch8_siglip_32", "timm_pool": "map",
                       "timm_proj": "none", "timm_model_pretrained": False},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2, "mlp_ratio": 2,
                     "no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6},
                     "act_kwargs": {"approximate": "tanh"}},
    }  # fmt: skip
    monkeypatch.setattr(open_clip, "list_models", lambda: ["ViT-test-8-SigLIP"])
    monkeypatch.setattr(open_clip, "get_model_config", lambda name: own)
    entry = add(tmp_path / "theirs")
    monkeypatch.undo()
    assert (entry.resize, entry.mean, entry.timm, entry.quick_gelu) == ("squash", (0.5, 0.5, 0.5), True, False)
    assert_features_of_transformers(entry, model, torch.nn.Identity(), torch.nn.Identity())
    tower = load_backbone(entry, "cpu").tower
    tuned = {f"model.{name}": 1.01 * tensor for name, tensor in model.state_dict().items()}
    source = convert_image_tower(tuned | {"classifier.weight": torch.ones(2)}, tower)
    assert all(torch.equal(source.tensors[name], 1.01 * own) for name, own in tower.state_dict_open_clip().items())
    assert source.layout == "SigLIP of transformers"
    bare = {name.removeprefix("model.vision_model."): each for name, each in tuned.items() if "vision_model" in name}
    alone = convert_image_tower(bare, tower)  # a SiglipVisionModel of transformers 5
    assert all(torch.equal(alone.tensors[name], source.tensors[name]) for name in source.tensors)
    text_and_more = sum("vision_model" not in name for name in tuned) + 1
    assert source.notes == (f"tensors outside the image tower that were left out: {text_and_more}",)


@pytest.mark.parametrize(
    ("patch", "side", "width", "text", "trunk", "tokenizer"),
    [
        (16, 224, 768, {}, "vit_base_patch16_siglip_224", "ViT-B-16-SigLIP"),
        (16, 256, 1152, {"hidden_size": 1152, "num_hidden_layers": 27, "vocab_size": 256000},
         "vit_so400m_patch16_siglip_256", "ViT-SO400M-16-SigLIP2-256"),
        (16, 256, 1536, {"hidden_size": 1152, "num_hidden_layers": 27, "vocab_size": 256000},
         "vit_giantopt_patch16_siglip_256", "ViT-gopt-16-SigLIP2-256"),
        (14, 384, 1152, {"hidden_size": 1152, "num_hidden_layers": 27, "vocab_size": 256000},
         "vit_so400m_patch14_siglip_384", "ViT-SO400M-14-SigLIP2"),
    ],
)  # fmt: skip
def test_published_siglips_are_found(
    patch: int, side: int, width: int, text: dict[str, int], trunk: str, tokenizer: str
) -> None:
    """SO400M with patches of 16 was taken for the giant one, and SigLIP 2 at 384 pixels was refused."""
    vision = {"patch_size": patch, "image_size": side, "hidden_size": width}
    found = siglip_config({"model_type": "siglip", "vision_config": vision, "text_config": text})
    assert (found["vision_cfg"]["timm_model_name"], found["vision_cfg"]["image_size"]) == (trunk, side)
    assert found["text_cfg"]["hf_tokenizer_name"].startswith(f"timm/{tokenizer}")
    assert found["embed_dim"] == width


def test_a_folder_of_open_clip_is_a_backbone(tmp_path: Path, resnet: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    stated = {"model_cfg": CONFIG, "preprocess_cfg": {"interpolation": "bilinear"}}
    (theirs / "open_clip_config.json").write_text(json.dumps(stated))
    (theirs / "open_clip_model.safetensors").write_bytes((resnet / "small.safetensors").read_bytes())
    entry = add(theirs)
    assert (entry.interpolation, entry.has_matrices) == ("bilinear", False)
    shipped = load_catalog([resnet / "own.yaml"]).backbone("resnet")
    assert load_backbone(entry, "cpu").digest == load_backbone(shipped, "cpu").digest


def test_weights_in_parts_are_a_backbone(tmp_path: Path, resnet: Path) -> None:
    """They were refused, although transformers and open_clip write large models so."""
    tensors = list(load_file(resnet / "small.safetensors").items())
    for part in range(2):
        save_file(dict(tensors[part::2]), tmp_path / f"model-{part}.safetensors")
    index = {"weight_map": {name: f"model-{place % 2}.safetensors" for place, (name, _) in enumerate(tensors)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    catalog = tmp_path / "catalog.yaml"
    invoke("backbones", "add", resnet / "small.json", "--file", tmp_path, "--gelu", "--catalog", catalog)
    entry = load_catalog([catalog]).backbone("small-model")
    shipped = load_catalog([resnet / "own.yaml"]).backbone("resnet")
    assert load_backbone(entry, "cpu").digest == load_backbone(shipped, "cpu").digest
    before = backbone_ref(entry)
    (tmp_path / "model-1.safetensors").write_bytes(b"other")
    assert backbone_ref(entry) != before
    (tmp_path / "model-1.safetensors").unlink()
    assert "lists the part 'model-1.safetensors'" in str(missing_weights(entry))
    block = (
        "{track: fewshot, backbones: [small-model], datasets: [glyph-digits], shots: [1], seeds: [1], methods: [gda]}"
    )
    (tmp_path / "own.yaml").write_text(f"title: Own\nblocks: [{block}]")
    absent = absent_files(load_grid(tmp_path / "own.yaml", load_catalog([catalog])), None)
    assert absent == "the weights of small-model are not there, and without them their results are not found"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "neither open_clip_config.json nor config.json"),
        ({"config.json": {"model_type": "bert"}}, "'bert', not a CLIP"),
        ({"config.json": {"model_type": "clip", "text_config": {"vocab_size": 9}}}, "vocabulary has 9 tokens"),
        ({"open_clip_config.json": {"embed_dim": 3}}, "model_cfg"),
    ],
)
def test_a_folder_that_is_no_clip_is_refused(files: dict[str, object], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    for name, content in files.items():
        (tmp_path / "theirs" / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=complaint):
        add(tmp_path / "theirs")


@pytest.mark.parametrize("method", ["lora", "bolt_pooled"])
def test_methods_that_need_named_matrices_are_refused_before_any_work(resnet: Path, method: str) -> None:
    with pytest.raises(UserError, match=r"(?s)needs the weight matrices.*tip_adapter"):
        invoke("grid", *grid(resnet, "zero_shot", method))
    assert not (resnet / "store").exists()
    planned = invoke("plan", *grid(resnet, "zero_shot", method), "--only", "method=zero_shot")
    assert "1 cell" in planned
    assert "features only" in planned


def test_a_logit_scale_that_is_no_logarithm_is_one_message(resnet: Path, tmp_path: Path) -> None:
    """Regression: it was a traceback."""
    tensors = load_file(resnet / "small.safetensors") | {"logit_scale": torch.tensor(100.0)}
    save_file(tensors, tmp_path / "small.safetensors")
    words = ("--name", "other", "--gelu", "--catalog", tmp_path / "own.yaml")
    with pytest.raises(UserError, match="the logit_scale of other is 100"):
        invoke("backbones", "add", resnet / "small.json", "--file", tmp_path / "small.safetensors", *words)


def test_it_has_no_sources(resnet: Path) -> None:
    words = ("--dataset", "shades", "--backbone", "resnet", "--catalog", resnet / "own.yaml")
    with pytest.raises(UserError, match="features only"):
        invoke("sources", "adopt", resnet / "small.safetensors", *words)


@pytest.mark.e2e
def test_a_backbone_of_features_goes_through_grid_export_and_adapt(
    resnet: Path, tmp_path: Path, give_database: GiveDatabase
) -> None:
    give_database(resnet / "store" / "mlflow" / "mlflow.db")
    methods = ("zero_shot", "tip_adapter", "linear_probe", "coop", "auto")
    assert "5 cells finished" in invoke("grid", *grid(resnet, *methods), "--local")
    store = ("--store", resnet / "store", *write_image_folders(resnet))
    words = ("export", "fewshot.resnet.shades.k1.tip_adapter", *store, "-o")
    assert "are the same as those before saving" in invoke(*words, tmp_path / "model")
    with pytest.raises(UserError, match="adapter"):
        invoke(*words, tmp_path / "merged", "--as", "state_dict")
    folder = resnet / "images" / "shades"
    invoke("adapt", folder, "--backbone", "resnet", "--minutes", 0.1, "--output", tmp_path / "mine", *store[:4])
    backbone = bolt.load_backbone(resnet / "small.json", resnet / "small.safetensors", quick_gelu=False)
    assert bolt.load_model(tmp_path / "mine", backbone).predict([next(folder.rglob("*.png"))])


def test_weights_are_said_to_be_there_only_if_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` said "there" of three backbones whose weights were not on the machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    entry = load_catalog().backbone("vit-b-32")
    assert not has_weights(entry)
    assert 550e6 < download_bytes(entry) < 650e6  # OpenAI's ViT-B/32 in float32: 605 MB
    commit = "0" * 8
    repository = tmp_path / "models--timm--vit_base_patch32_clip_224.openai"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "open_clip_model.safetensors").write_bytes(b"weights")
    assert has_weights(entry)
    assert has_weights(load_catalog().backbone("tiny-clip"))


@pytest.mark.parametrize(("key", "quick_gelu"), [("skyclip-b-32", False), ("skyclip-l-14", True)])
def test_weights_that_no_program_fetches_come_with_their_address(key: str, quick_gelu: bool, tmp_path: Path) -> None:
    entry = load_catalog().backbone(key)
    assert entry.quick_gelu == quick_gelu
    with pytest.raises(UserError, match=rf"(?s){key}.pt does not exist.*by hand: unpack https://\S+\.zip, and give"):
        fetch_weights(entry, Console())
    block = {
        "track": "fewshot", "backbones": [key], "datasets": ["glyph-digits"], "shots": [1], "methods": ["zero_shot"],
    }  # fmt: skip
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({"title": "One", "blocks": [block | {"seeds": [1]}]}))
    shown = CliRunner().invoke(app, ["doctor", str(tmp_path / "one.yaml"), "--store", str(tmp_path / "store")])
    address = str(entry.weights.by_hand).split()[1].rstrip(",")
    assert address in "".join(shown.output.split())  # folded to the width of the table, not cut


def test_weights_of_the_hub_are_read_from_its_cache(
    resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it would be asked, again and again
    remote = load_catalog().backbone("remoteclip-b-32")
    assert not has_weights(remote)
    with pytest.raises(UserError, match=r"(?s)not on this machine.*hf_hub_download\('chendelong/RemoteCLIP'"):
        load_backbone(remote, "cpu")
    with pytest.raises(UserError, match=r"chendelong/RemoteCLIP of backbone remoteclip-b-32 cannot be fetched"):
        fetch_weights(remote, Console())
    stated = load_catalog([resnet / "own.yaml"]).backbone("resnet")
    weights = Weights(hub="owner/name", file="folder/clip.safetensors")
    entry = stated.model_copy(update={"weights": weights})
    before = backbone_ref(entry)
    folder = tmp_path / "models--owner--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123")
    (folder / "snapshots" / "0123" / "folder").mkdir(parents=True)
    copyfile(resnet / "small.safetensors", folder / "snapshots" / "0123" / "folder" / "clip.safetensors")
    assert has_weights(entry)
    assert backbone_ref(entry) == before  # the same before and after the download
    assert load_backbone(entry, "cpu").digest == load_backbone(stated, "cpu").digest
    with pytest.raises(ValueError, match="needs"):
        Weights(hub="owner/name", pretrained="openai")


@pytest.fixture(scope="module")
def timm_catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like ``resnet`` with a random CLIP whose image tower is timm's."""
    folder = tmp_path_factory.mktemp("siglip")
    write_image_folders(folder)
    vision = {"timm_model_name": "small_siglip", "timm_model_pretrained": False, "timm_pool": "map",
              "timm_proj": "none", "image_size": 32}  # fmt: skip
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": CONFIG["text_cfg"], "custom_text": True}
    (folder / "small.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = open_clip.CustomTextCLIP(16, vision, CONFIG["text_cfg"])
    save_file(dict(model.state_dict()), folder / "small.safetensors")
    words = ("--name", "resnet", "--gelu", "--catalog", folder / "own.yaml")
    invoke("backbones", "add", folder / "small.json", "--file", folder / "small.safetensors", *words)
    return folder


def test_a_tower_of_timm_says_so(timm_catalog: Path) -> None:
    entry = load_catalog([timm_catalog / "own.yaml"]).backbone("resnet")
    assert (entry.timm, entry.layers, entry.patch) == (True, 2, 8)
    with pytest.raises(UserError, match=r"(?s)prolip needs.*timm's.*lora"):
        invoke("grid", *grid(timm_catalog, "prolip"))


@pytest.mark.e2e
def test_a_tower_of_timm_is_trained_in_a_grid_exported_and_a_source(
    timm_catalog: Path, tmp_path: Path, give_database: GiveDatabase
) -> None:
    give_database(timm_catalog / "store" / "mlflow" / "mlflow.db")
    entry = load_catalog([timm_catalog / "own.yaml"]).backbone("resnet")
    backbone = load_backbone(entry, "cpu")
    tuned = {name: 1.01 * tensor for name, tensor in backbone.tower.state_dict_open_clip().items()}
    save_file({f"visual.{name}": tensor for name, tensor in tuned.items()}, tmp_path / "tuned.safetensors")
    catalog = write_image_folders(timm_catalog)
    words = ("--dataset", "grounds", "--backbone", "resnet", *catalog[:2])
    invoke("sources", "adopt", tmp_path / "tuned.safetensors", *words)
    one = {"epochs": 1, "batch_size": 16}
    block = {
        "track": "fewshot", "backbones": ["resnet"], "datasets": ["shades"], "shots": [1], "seeds": [1],
        "methods": ["zero_shot", {"lora": one}, {"atlas": one}, {"bolt": one}, "tsv_merge"],
        "sources": {"rule": "leave_one_out", "datasets": ["grounds", "shades"]},
    }  # fmt: skip
    (timm_catalog / "grid.yaml").write_text(yaml.safe_dump({"title": "x", "protocol": "strict", "blocks": [block]}))
    store = ("--store", timm_catalog / "store", *catalog)
    assert "5 cells finished" in invoke("grid", timm_catalog / "grid.yaml", *store, "--local")
    export = ("export", "fewshot.resnet.shades.k1.lora", *store, "--as", "state_dict", "-o", tmp_path / "model")
    assert "are the same as those before saving" in invoke(*export)
