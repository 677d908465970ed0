"""Every model of open_clip has an entry: the kind of its tower, and how its weights expect their images."""

import json
import re
from collections import Counter
from pathlib import Path

import open_clip
import pytest

from bolt.clip.feature_tower import FeatureTower, TimmTower
from bolt.clip.tower import ImageTower
from bolt.clip.whole_clip import preprocessing
from orchestrator.artifacts.load_backbone import load_backbone
from orchestrator.catalog import BackboneEntry, backbone_ref, load_catalog
from orchestrator.models.backbone_entry import backbone_entry, meta_tower
from orchestrator.util.errors import UserError


@pytest.mark.e2e
def test_every_configuration_of_open_clip_is_a_backbone() -> None:
    """47 of 144 were: OpenAI's and LAION's plain vision transformers. SigLIP and PE-Core can be trained, too."""
    # ``open_clip.list_models`` has the models that other tests add, too.
    files = (Path(open_clip.__file__).parent / "model_configs").glob("*.json")
    names, kinds, built = sorted(path.stem for path in files), {}, dict[str, type[ImageTower]]()
    for name in names:
        config = open_clip.get_model_config(name)
        if not config["vision_cfg"].get("timm_model_name"):
            config["vision_cfg"]["layers"] = [1] * 4 if "RN" in name else 1  # all layers of a tower are alike
        read = json.dumps({field: config.get(field) for field in ("embed_dim", "vision_cfg", "quick_gelu")})
        read = re.sub(r'_\d+"|"image_size": \d+', "", read)
        if read not in built:  # many differ only in the size of images or in the text tower, of which nothing is built
            built[read] = type(meta_tower(config, name))
        kinds[name] = built[read]
    assert len(kinds) >= 140
    count = Counter(kinds.values())
    assert (count[ImageTower] >= 47, count[TimmTower] >= 37) == (True, True)
    assert {kinds[name] for name in names if "SigLIP" in name or "PE-Core" in name} == {TimmTower}
    assert kinds["EVA02-B-16"] is TimmTower
    assert kinds["EVA02-E-14"] is FeatureTower  # it multiplies by the weight of its fused query-key-value itself


LISTED = {
    ("RN50", "openai"): ("shortest", "bicubic", None, True, True),
    ("ViT-B-16-SigLIP2", "webli"): ("squash", "bicubic", (0.5, 0.5, 0.5), False, False),
    ("PE-Core-T-16-384", "meta"): ("squash", "bilinear", (0.5, 0.5, 0.5), True, False),
    ("MobileCLIP-S1", "datacompdr"): ("shortest", "bilinear", (0.0, 0.0, 0.0), False, False),
    ("ViT-H-14-378-quickgelu", "dfn5b"): ("squash", "bicubic", None, True, True),
}


@pytest.mark.parametrize(("architecture", "tag"), LISTED)
def test_an_entry_says_how_the_weights_expect_their_images(architecture: str, tag: str) -> None:
    entry = backbone_entry(architecture, tag)
    found = (entry.resize, entry.interpolation, entry.mean, entry.trainable_text, entry.quick_gelu)
    assert found == LISTED[architecture, tag]


def test_weights_that_are_squashed_under_an_entry_that_says_otherwise_are_refused() -> None:
    """DFN's 378-pixel CLIP was shown the centre of each image, and lost points without a word."""
    entry = backbone_entry("ViT-H-14-378-quickgelu", "dfn5b").model_copy(update={"resize": "shortest"})
    with pytest.raises(UserError, match="resize squash"):
        load_backbone(entry, "cpu")


def test_a_file_of_siglips_weights_gets_siglips_images(tmp_path: Path) -> None:
    """open_clip gives OpenAI's mean to any file. All tags of the architecture say the same, so it is not OpenAI's."""
    config = open_clip.get_model_config("ViT-B-16-SigLIP")
    for model in ("ViT-B-16-SigLIP", "a/folder/of/transformers.json"):
        how = preprocessing(config, model, tmp_path / "mine.safetensors")
        assert how == {"resize": "squash", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    own = {**config, "preprocess_cfg": {"mean": (0.1, 0.2, 0.3)}}  # the values in the architecture's file count
    assert preprocessing(own, "mine.json", tmp_path / "mine.safetensors")["mean"] == (0.1, 0.2, 0.3)
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"preprocess_cfg": {"interpolation": "bilinear"}}))
    assert preprocessing(config, "ViT-B-16-SigLIP", tmp_path / "mine.safetensors") == {"interpolation": "bilinear"}


def test_identity_follows_the_preprocessing_and_old_entries_keep_theirs() -> None:
    plain = load_catalog().backbone("vit-b-32")
    assert backbone_ref(plain) != backbone_ref(plain.model_copy(update={"resize": "squash"}))
    assert backbone_ref(plain) == backbone_ref(BackboneEntry(name="vit-b-32", **plain.model_dump(exclude={"name"})))
