"""The catalog: what ships parses, what is wrong says where, identities follow content and nothing else."""

from pathlib import Path

import pytest

from orchestrator.catalog import (
    Catalog,
    backbone_ref,
    class_names_of,
    dataset_ref,
    load_catalog,
    missing_data,
    missing_weights,
    prompt_templates,
)
from orchestrator.report.paper.published import published_accuracies, published_datasets
from orchestrator.util.errors import UserError
from tests.helpers.command import invoke

ENTRY = """
domains:
  pictures: {title: Pictures}
datasets:
  cats:
    title: Cats
    domain: pictures
    route: {kind: folder, folder: cats}
    class_names: [tabby, tortoiseshell]
    prompts: ["a photo of a {} cat."]
    classes: 2
    sizes: {train: 20, test: 10}
    splits: {recipe: official}
    licence: CC0
"""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def extra(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def message(tmp_path: Path, text: str) -> str:
    """What a user sees when a catalog file says ``text``."""
    path = extra(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_catalog([path])
    return str(caught.value).replace(str(path), "mine.yaml")


def test_the_papers_37_datasets_ship(catalog: Catalog) -> None:
    assert len(catalog.datasets_of("general")) == 17
    assert len(catalog.datasets_of("remote_sensing")) == 15
    assert [e.name for e in catalog.datasets_of("imagenet")] == [
        "imagenet", "imagenet_a", "imagenet_r", "imagenet_sketch", "imagenet_v2",
    ]  # fmt: skip


def test_what_is_beyond_the_paper_joins_no_grids_sources(catalog: Catalog) -> None:
    assert [e.name for e in catalog.datasets_of("general_extra")] == ["fer2013", "kmnist", "emnist_balanced"]
    trainable = {d: [e.name for e in catalog.datasets_of(d) if e.has_training_images] for d in ("glyphs", "aerial")}
    assert [len(names) for names in trainable.values()] == [8, 8]
    only_evaluated = {e.name for e in catalog.datasets_of("aerial")} - set(trainable["aerial"])
    assert only_evaluated == {f"aerial-land-{look}" for look in ("again", "sketch", "poster", "cloudy")}


def test_characters_text_and_signs_are_not_mirrored(catalog: Catalog) -> None:
    assert {name for name, entry in catalog.datasets.items() if not entry.mirrorable} == {
        "gtsrb", "mnist", "svhn", "rendered_sst2", "emnist", "emnist_balanced", "kmnist", "omniglot",
        "scikit-digits", "handwritten-digits", "glyph-digits", "glyph-tilted-digits", "glyph-capitals",
        "glyph-small-letters",
        "glyph-greek", "glyph-kinds",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("cifar10", 18), ("cifar100", 18), ("stl10", 18), ("dtd", 8), ("country211", 5), ("fashionmnist", 2),
        ("fgvc_aircraft", 2), ("gtsrb", 'a close up photo of a "X" traffic sign.'),
        ("mnist", 'a photo of the number: "X".'), ("svhn", 'a photo of the number: "X".'),
        ("emnist", 'a photo of the number: "X".'),
        ("pcam", "this is a photo of X"), ("rendered_sst2", "a X review of a movie."),
        ("food101", "a photo of X, a type of food."), ("oxford_pets", "a photo of a X, a type of pet."),
        ("flowers102", "a photo of a X, a type of flower."), ("cub200", "a photo of a X, a type of bird."),
    ],
)  # fmt: skip
def test_general_prompts_are_those_published_with_clip(catalog: Catalog, name: str, texts: int | str) -> None:
    found = [template.format("X") for template in prompt_templates(catalog.datasets[name])]
    assert len(set(found)) == len(found)
    if isinstance(texts, int):
        assert len(found) == texts
    else:
        assert found[-1] == texts
        assert len(found) == (3 if name == "gtsrb" else 1)


def test_names_in_the_papers_tables_are_complete_and_agree(catalog: Catalog) -> None:
    for domain in ("general", "remote_sensing"):
        printed = {row.dataset for row in published_datasets() if row.domain == domain}
        assert {entry.published_as for entry in catalog.datasets_of(domain)} == printed
    variants = {at.dataset for at in published_accuracies() if at.track == "ood"} - {"Average"}
    assert {e.published_as for e in catalog.datasets_of("imagenet")} - {None} == variants
    backbones = {at.backbone for at in published_accuracies()} - {"mean"}
    assert {e.published_as for e in catalog.backbones.values()} - {None} == backbones


def test_class_counts_differ_from_the_paper_exactly_where_an_entry_says_so(catalog: Catalog) -> None:
    printed = {row.dataset: row.classes for row in published_datasets()}
    for domain in ("general", "remote_sensing"):
        for entry in catalog.datasets_of(domain):
            assert (entry.published_classes or entry.classes) == printed[entry.published_as or ""], entry.name
            assert entry.published_classes is None or entry.note, f"{entry.name} differs without a note"


def test_test_sizes_are_those_behind_the_papers_numbers(catalog: Catalog) -> None:
    behind = {
        "dtd": 1880, "oxford_pets": 3669, "flowers102": 6149, "rendered_sst2": 1821, "fgvc_aircraft": 3333,
        "cub200": 5794, "clrs": 3000, "eurosat": 5400, "resisc45": 6300, "optimal31": 372, "patternnet": 6080,
        "rs_c11": 247, "rsd46_whu": 3504, "rsi_cb128": 7342, "rsscn7": 560, "siri_whu": 480, "uc_merced": 420,
        "whu_rs19": 201, "imagenet_a": 7500,
    }  # fmt: skip
    assert {name: catalog.datasets[name].sizes.test for name in behind} == behind


def test_every_shipped_entry_has_an_identity_and_texts(catalog: Catalog) -> None:
    assert len({dataset_ref(entry, None) for entry in catalog.datasets.values()}) == len(catalog.datasets)
    assert len({backbone_ref(entry).digest for entry in catalog.backbones.values()}) == len(catalog.backbones)
    for entry in catalog.datasets.values():
        if not isinstance(entry.prompts, str):
            assert all("{}" in template for template in prompt_templates(entry))


def test_open_clips_lists_are_imported_when_asked_for(catalog: Catalog) -> None:
    entry = catalog.datasets["imagenet"]
    assert len(prompt_templates(entry)) == 80
    assert "{}" in next(iter(prompt_templates(entry)))
    words = class_names_of(entry)
    assert words is not None
    assert (len(words), entry.classes) == (1000, 1000)


def test_a_users_file_joins_the_catalog(tmp_path: Path) -> None:
    named = load_catalog([extra(tmp_path, ENTRY.replace('["a photo of a {} cat."]', "pet"))]).dataset("cats")
    assert named.prompts == ("a photo of a {}, a type of pet.",), "the name of a prompt set"
    catalog = load_catalog([extra(tmp_path, ENTRY)])
    entry = catalog.dataset("cats")
    assert (entry.title, entry.prompts, entry.max_shots) == ("Cats", ("a photo of a {} cat.",), 10)
    assert [e.name for e in catalog.datasets_of("pictures")] == ["cats"]
    with pytest.raises(ValueError, match="frozen"):
        entry.title = "Dogs"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("old", "new", "where", "facts"),
    [
        ("title: Cats", "titel: Cats", ": datasets.cats", ("'titel'", "'title'")),
        ("    licence: CC0\n", "", ": datasets.cats.licence", ("needed",)),
        ("folder: cats}", "foldr: cats}", ": datasets.cats.route", ("'foldr'", "'folder'")),
        ("folder: cats}", "folder: ../cats}", ": datasets.cats.route.folder", ("'../cats'", "data root")),
        ("kind: folder", "kind: foldr", ": datasets.cats.route.kind", ("'foldr'", "'folder'")),
        ("kind: folder, ", "", ": datasets.cats.route.kind", ("kind", "folder, huggingface")),
        ("recipe: official", "recipe: officially", ": datasets.cats.splits.recipe", ("'officially'", "'official'")),
        ("classes: 2", "classes: two", ": datasets.cats.classes", ("'two'", "integer")),
        ("classes: 2", "classes: 3", ": datasets.cats", ("class_names", "2", "3")),
        ("tabby, tortoiseshell", "tabby, 7", ": datasets.cats.class_names", ("7", "quotes")),
        ("tabby, tortoiseshell", "no, tabby", ": datasets.cats.class_names", ("False", "quotes")),
        ("tabby, tortoiseshell", "tabby, tabby", ": datasets.cats", ("'tabby'",)),
        ("[tabby, tortoiseshell]", "catnames", ": datasets.cats.class_names", ("'catnames'", "open_clip.NAME")),
        ("a photo of a {} cat.", "a photo of a cat.", ": datasets.cats.prompts", ("'a photo of a cat.'", "{}")),
        ('["a photo of a {} cat."]', "pets", ": datasets.cats.prompts", ("'pets'", "'pet'")),
        ('["a photo of a {} cat."]', "{tabby: [], tortoiseshell: [x]}", ": datasets.cats.prompts", ("[]", "'tabby'")),
        ('["a photo of a {} cat."]', "{tabby: [striped]}", ": datasets.cats", ("same words", "'tortoiseshell'")),
        ("domain: pictures", "domain: picture", ": datasets.cats.domain", ("'picture'", "'pictures'")),
        ("  cats:", "  Cats!:", ": datasets", ("'Cats!'", "lower-case")),
        ("  cats:", "  7:", ": datasets", ("7", "quotes")),
        ("datasets:", "dataset:", "", ("'dataset'", "'datasets'")),
        ("    title: Cats", "    name: cats\n    title: Cats", ": datasets", ("cats", "name", "key")),
        ("    title: Cats", "    smallest_class: 11\n    title: Cats", ": datasets.cats", ("smallest_class 11",)),
        ("    title: Cats", "    title: Cats\n    title: Dogs", ", line 7, column 5", ("'title'", "twice")),
        ("route: {", "route: {{", ", line 9, column 5", ("not valid YAML",)),
        ('"a photo of a {} cat."', "a photo of a {} cat.", ", line 10, column 28", ("{}", "quotes")),
        ("title: Cats", "title: !!python/object/apply:os.getcwd []", ", line 6, column 12", ("tags", "refused")),
    ],
)
def test_a_mistake_has_its_location(tmp_path: Path, old: str, new: str, where: str, facts: tuple[str, ...]) -> None:
    assert old in ENTRY
    path = extra(tmp_path, ENTRY.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        load_catalog([path])
    assert caught.value.where == f"{path}{where}"
    message = f"{caught.value.what} {caught.value.hint}"
    assert [fact for fact in facts if fact not in message] == []


def test_a_name_taken_by_another_file_names_both(tmp_path: Path) -> None:
    text = message(tmp_path, ENTRY.replace("  cats:", "  mnist:"))
    assert text.startswith("mine.yaml: datasets.mnist: grids/datasets/general.yaml has another entry 'mnist'")


def test_two_files_may_have_the_same_entry_but_not_two_of_one_name(tmp_path: Path) -> None:
    """`data add` writes the domain of one's own datasets into each catalog file."""
    both = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    own = "domains:\n  own: {title: Own}\n"
    both[0].write_text(own)
    both[1].write_text(own)
    assert load_catalog(both).domain("own").title == "Own"
    both[0].write_text(own.replace("Own", "Mine"))
    with pytest.raises(UserError, match=r"(?s)two.yaml: domains.own: .*one.yaml has another entry 'own'"):
        load_catalog(both)


def test_a_file_that_is_no_mapping_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    for text in ("", "[1, 2]", "just words"):
        assert "needs fields" in message(tmp_path, text)
    with pytest.raises(UserError, match="cannot be read"):
        load_catalog([tmp_path / "nowhere.yaml"])
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(UserError, match="cannot be read"):
        load_catalog([tmp_path / "bytes.yaml"])


def test_weights_are_a_file_or_a_tag(tmp_path: Path) -> None:
    text = """
backbones:
  big: {title: Big, architecture: ViT-B-32, weights: {file: a.safetensors, pretrained: openai}, quick_gelu: true,
    image_size: 224, embed_dim: 512, width: 768, layers: 12, patch: 32, gflops_per_image: 9, parameters: 1}
"""
    assert "mine.yaml: backbones.big.weights: needs either 'file' or 'pretrained'" in message(tmp_path, text)
    text = text.replace("file: a.safetensors, ", "").replace("quick_gelu: true", "quick_gelu: 1")
    assert "mine.yaml: backbones.big.quick_gelu: 1: input should be a valid boolean" in message(tmp_path, text)


def test_lookups_suggest_the_nearest_name(catalog: Catalog) -> None:
    with pytest.raises(UserError) as caught:
        catalog.dataset("flower102", where="grids/x.yaml: blocks[0].datasets[1]")
    assert str(caught.value).startswith("grids/x.yaml: blocks[0].datasets[1]: unknown dataset 'flower102'\n")
    assert "did you mean 'flowers102'" in str(caught.value)
    with pytest.raises(UserError, match="did you mean 'vit-b-32'"):
        catalog.backbone("vit-b32")
    with pytest.raises(UserError, match="did you mean 'general'"):
        catalog.domain("generall")
    with pytest.raises(UserError, match="--catalog FILE"):  # the dataset may be in a file that was not given
        catalog.dataset("wardrobe")


def test_a_datasets_identity_is_its_content_not_its_description(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        return dataset_ref(load_catalog([extra(tmp_path, text)]).dataset("cats"), None).digest

    first = digest(ENTRY)
    for described in (
        ENTRY.replace("title: Cats", "title: Felines"),
        ENTRY.replace("CC0", "MIT"),
        ENTRY + "    kin: beasts\n    note: seen\n    fine_tune_epochs: 3\n",
        ENTRY.replace("train: 20", "train: 30"),
    ):
        assert digest(described) == first
    for changed in (
        ENTRY.replace("folder: cats", "folder: felines"),
        ENTRY.replace("recipe: official", "recipe: eighty_twenty"),
        ENTRY.replace("tabby", "ginger"),
        ENTRY + "    mirrorable: false\n",
        ENTRY.replace("a photo of a {} cat.", "a drawing of a {} cat."),
        ENTRY.replace("[tabby, tortoiseshell]", "{tabby: tabby, tortoiseshell: tortoiseshell}"),
    ):
        assert digest(changed) != first


def test_a_folders_files_are_part_of_its_identity(tmp_path: Path) -> None:
    entry = load_catalog([extra(tmp_path, ENTRY)]).dataset("cats")
    absent = dataset_ref(entry, None)
    assert dataset_ref(entry, tmp_path) == absent
    (tmp_path / "cats" / "train" / "tabby").mkdir(parents=True)
    (tmp_path / "cats" / "train" / "tabby" / "1.png").write_bytes(b"123")
    present = dataset_ref(entry, tmp_path)
    assert present != absent
    assert dataset_ref(entry, tmp_path) == present
    (tmp_path / "cats" / ".DS_Store").write_bytes(b"hidden files do not count")
    assert dataset_ref(entry, tmp_path) == present
    (tmp_path / "cats" / "train" / "tabby" / "1.png").write_bytes(b"1234")
    assert dataset_ref(entry, tmp_path) != present


def test_a_folder_dataset_is_missing_until_its_parts_are_there(tmp_path: Path) -> None:
    entry = load_catalog([extra(tmp_path, ENTRY)]).dataset("cats")
    assert "pass --data-root PATH or set BOLT_DATA" in str(missing_data(entry, None))
    assert f"{tmp_path / 'cats' / 'train'}/ and {tmp_path / 'cats' / 'test'}/" in str(missing_data(entry, tmp_path))
    (tmp_path / "cats" / "train").mkdir(parents=True)
    assert missing_data(entry, tmp_path) is not None
    (tmp_path / "cats" / "test").mkdir()
    assert missing_data(entry, tmp_path) is None
    whole = entry.model_copy(update={"splits": entry.splits.model_copy(update={"recipe": "eighty_twenty"})})
    assert "all/" in str(missing_data(whole, tmp_path))
    (tmp_path / "cats" / "all").mkdir()
    assert missing_data(whole, tmp_path) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("imagenet", "terms to be accepted at image-net.org"),
        ("mnist", "torchvision.datasets.MNIST"),
        ("pcam", "https://huggingface.co/datasets/1aurent/PatchCamelyon"),
        ("cub200", "sha256:0c685df5"),
        ("rsi_cb128", "https://github.com/lehaifeng/RSI-CB"),
    ],
)
def test_missing_data_says_what_to_place_where(catalog: Catalog, tmp_path: Path, name: str, expected: str) -> None:
    entry = catalog.datasets[name]
    for error in (missing_data(entry, None), missing_data(entry, tmp_path)):
        text = str(error)
        assert expected in text
        assert f"data prepare {name}" in text or entry.route.kind == "manual"
        assert entry.licence in text
        assert f"/{name}" in text
    (tmp_path / name).mkdir()
    assert missing_data(entry, tmp_path) is None


def test_the_data_root_is_an_option_or_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLT_DATA", "/somewhere")
    for option, root in ([], "/somewhere"), (["--data-root", "/here"], "/here"):
        assert f"looked for in {root}" in invoke("data", "list", "--domain", "general", *option)


def test_a_backbones_identity_follows_its_weights(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    tiny = catalog.backbones["tiny-clip"]
    entry = tiny.model_copy(update={"weights": tiny.weights.model_copy(update={"file": str(path)})})
    assert "w.safetensors does not exist" in str(missing_weights(entry))
    absent = backbone_ref(entry)
    path.write_bytes(b"weights")
    assert missing_weights(entry) is None
    present = backbone_ref(entry)
    assert present != absent
    path.write_bytes(b"other weights")
    assert backbone_ref(entry) != present
    assert backbone_ref(tiny.model_copy(update={"quick_gelu": True})) != backbone_ref(tiny)
    assert backbone_ref(tiny.model_copy(update={"title": "other"})) == backbone_ref(tiny)
    assert missing_weights(catalog.backbones["vit-b-32"]) is None
