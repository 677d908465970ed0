"""Words made of the names of class folders."""

import unicodedata

import pytest
import torch

from bolt.class_words import class_words, names_of_folders
from bolt.clip.backbone import Backbone, average_prompts
from bolt.task.task import ClassText


@pytest.mark.parametrize(
    "named",
    [
        {"001.Black_footed_Albatross": "black footed albatross", "BlackTailedDeer": "black tailed deer"},
        {"18-wheeler": "18-wheeler", "747-400": "747-400", "C-130": "c-130", "F-16A%2FB": "f-16a/b", "707": "707"},
        {"1_cat": "1 cat", "2_cat": "2 cat"},
        {"class_0001_cat": "cat", "class_0002_dog": "dog"},
        {"c0_safe_driving": "safe driving", "c1_texting": "texting"},
        {"C4 Corvette": "c4 corvette", "C63_AMG": "c63 amg", "Class 37 Diesel": "class 37 diesel"},
        {"class_1_road": "class 1 road", "footpath": "footpath", "C-130 Hercules": "c-130 hercules"},
        {"0_healthy": "healthy", "1_sick": "sick"},
        {"1-cat": "cat", "2-dog": "dog"},
        {"(1) cat": "cat", "(2) dog": "dog"},
        {"1) cat": "cat", "#2 dog": "dog"},
        {"-1": "-1", "1": "1", "a-1": "a-1"},
        {"2-door": "2-door", "4-wheel drive": "4-wheel drive"},
        {"3_series": "3 series", "5_series": "5 series"},
        {"911_Carrera": "911 carrera", "Boxster": "boxster", "2.5_liter": "2.5 liter", "03-green-plate": "green plate"},
        {"DenseResidential": "dense residential", "t-shirt": "t-shirt", "X-Ray": "x-ray", "MRIScan": "mri scan"},
        {"SUVs": "suvs", "McDonalds": "mcdonalds", "NoEntry": "no entry", "St.Bernard": "st bernard"},
        {
            "  ": "  ", "12": "12", "2cats": "2cats", "red-mug": "red mug", "Äpfel": "äpfel",
            "БелаяСобака": "белая собака",
        },
        {"gr%C3%BCn": "grün", unicodedata.normalize("NFD", "weiß_Öl"): "weiß öl", "50%acrylic": "50%acrylic"},
        {"cat\u200b": "cat", "\ufeffdog": "dog", "\u202aowl\u202c": "owl"},
        {"K├ñse": "käse", "GrÃ¶ÃŸe": "größe", "Ã": "ã"},
        {"n01440764": "tench", "n02085620-Chihuahua": "chihuahua", "n02084071": "dog", "n99999999": "n99999999"},
    ],
)  # fmt: skip
def test_class_words_come_from_folder_names(named: dict[str, str]) -> None:
    assert class_words([*named]).words == named


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["n01440764", "cat"], "n01440764 -> tench"),
        (["n99999999", "c0", "cat"], "an image: 'n99999999', 'c0'"),
        (["bkl", "mel"], "an image: 'bkl'"),
        (["['cat']", "dog|cat", "cat;big", "nan"], "an image: \"['cat']\", 'dog|cat', 'cat;big', 'nan';"),
        (["9-Mar", "Oct-19", "#N/A", "\\N"], "an image: '9-mar', 'oct-19', '#n/a', "),
        (["may", "<NA>", "#REF!", "mig-29"], "an image: '<na>', '#ref!';"),
        (
            ["b'cat'", "'dog'", "tensor(1)", "np.int64(0)", "corn (maize)"],
            "an image: \"b'cat'\", \"'dog'\", 'tensor(1)', 'np",
        ),
        (["train/cat", "C:\\x", "a/b/c", "top/vest"], "an image: 'train/cat', 'c:\\\\x', 'a/b/c';"),
        (["part1", "Set 2", "128x128", "101CANON"], "an image: 'part1', 'set 2', '128x128', '101canon';"),
        (["class_01", "Label-2", "New folder (3)", "group"], "an image: 'class 01', 'label-2', 'new folder (3)';"),
        (["True", "FALSE", "owl"], "an image: 'true', 'false';"),
        (["cat", "-1"], "a label, or leftovers: '-1'"),
        (["cat", "Unlabeled", "to_delete"], "a label, or leftovers: 'unlabeled', 'to delete'; if so, leave them out"),
        (
            ["cat", "cats", "t-shirt", "TShirt", "T-Shirts", "as", "a"],
            "ways: 'cat' and 'cats', 't-shirt' and 't shirt'",
        ),
        (["12_cat", "47_dog"], "left out: 12_cat -> cat"),
        (["猫", "cat"], "another script: '猫'"),
        (["scab", "leaf_spot", "scab leaf_spot", "apple leaf_spot"], "other classes: 'scab leaf_spot';"),
        (["red dot", "mass", "mass, red dot", "mass+cyst"], "other classes: 'mass, red dot';"),
        (["cat", "dog", "cat_dog", "dog and cat", "cat_and_dog"], "'cat_dog', 'dog and cat', 'cat_and_dog';"),
        (
            ["cat", "cat (1)", "cat - Copy", "cat_aug2", "cat august"],
            "class's folder: 'cat (1)', 'cat - Copy', 'cat_aug2'",
        ),
        (["18-wheeler", "C-130", "747-400", "hôtel", "gym"], ""),
    ],
)
def test_what_is_done_with_the_names_is_said(names: list[str], said: str) -> None:
    assert said in "".join(class_words(names).notes)
    assert bool(said) == bool(class_words(names).notes)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["apple_pie", "beef tartare"], "'apple_pie' (rather 'apple pie')"),
        (["n02085620", "ThinkPad"], "'n02085620' (rather 'Chihuahua')"),
        (["T-shirt", "St. Bernard", "747-400", "McDonnell Douglas MD-80", "Coca-Cola", "Sea/Lake", "COVID-19"], ""),
        (["MacBook", "YouTube", "MiG-29", "McDonald's", "X-ray", "U.S.A.", "cafe\N{COMBINING ACUTE ACCENT}"], ""),
        (["10 of clubs", "2 of hearts"], ""),
        (["2012 Tesla Model S", "1998 Audi TT"], ""),
    ],
)
def test_names_that_are_no_words_are_told_from_words(names: list[str], shown: str) -> None:
    assert names_of_folders(names) == shown


def test_the_head_is_the_mean_of_a_class_own_sentences(backbone: Backbone) -> None:
    sentences = {"cat": ["a {} with whiskers", "it purrs", "a {}"], "dog": ["a {} that barks"]}
    head_CD = backbone.zero_shot_head(["dog", "cat"], sentences)
    cat_TD = backbone.encode_prompts(["a cat with whiskers", "it purrs", "a cat"])
    torch.testing.assert_close(head_CD[1:], average_prompts(cat_TD[None]))
    torch.testing.assert_close(head_CD[:1], backbone.zero_shot_head(["dog"], ["a {} that barks"]))
    assert ClassText.of(["dog", "cat"], sentences).templates == ("a photo of a {}.",)
    with pytest.raises(ValueError, match="'fox'"):
        backbone.zero_shot_head(["fox"], sentences)
    for prompts in (["a {word}, a {}"], {"dog": ["a {{}} that barks"]}):
        with pytest.raises(ValueError, match=r"only {} is replaced"):
            backbone.zero_shot_head(["dog"], prompts)
