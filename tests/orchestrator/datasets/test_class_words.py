"""How the classes of a dataset get their words: from the catalog's entry, or from the names in the data."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.class_words import class_words, class_words_of
from orchestrator.util.errors import UserError
from tests.helpers.small_archives import entry_of


def entry_with(**changes: Any) -> DatasetEntry:
    return entry_of("", route={"kind": "manual", "instructions": "from a friend"}, **changes)


def test_class_names_match_regardless_of_spelling() -> None:
    entry = entry_with(class_names={"BareLand": "bare land", "golf-course": "golf links"})
    for spelled in (["BareLand", "golf-course"], ["bare land", "golf_course"], ["bareland", "Golf Course"]):
        assert class_words_of(entry, spelled) == ("bare land", "golf links")


def test_a_list_of_the_datas_names_in_another_order_is_refused() -> None:
    """Cats were called dogs. A list is in label order, which is the order of the names for folders and tables."""
    entry = entry_with(class_names=["cat", "dog", "Bird"], classes=3)
    with pytest.raises(
        UserError, match=r"not in label order: 'cat' is at the position of the class 'bird'.*\n.*\{bird: WORDS"
    ):
        class_words_of(entry, ["bird", "cat", "dog"])
    assert class_words_of(entry, ["cat", "dog", "bird"]) == ("cat", "dog", "Bird")
    assert class_words_of(entry, ["c0", "c1", "c2"]) == ("cat", "dog", "Bird")


@pytest.mark.parametrize("words", [["red mug", "Red Mug"], ["red mug", "red  mug"]])
def test_words_that_the_tokenizer_cannot_tell_apart_are_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="would both be called"):
        entry_with(class_names=words, classes=2)


def test_some_classes_can_be_renamed() -> None:
    entry = entry_with(renamed={"Parting lot": "parking lot"})
    assert class_words_of(entry, ["fish_pond", "Parting lot"]) == ("fish pond", "parking lot")
    with pytest.raises(ValueError, match="replaces some class names"):
        entry_with(renamed={"a": "b"}, class_names=["a", "b"])


@pytest.mark.parametrize("names", [["storage_tank", "storage tank"], ["Pond", "pond"]])
def test_classes_that_would_get_the_same_words_are_refused(names: list[str]) -> None:
    with pytest.raises(UserError, match="would both be called"):
        class_words_of(entry_with(), names)


@pytest.mark.parametrize(
    "table",
    ["0 cat\n1 sea lion\n", ",folder,word\n0,1,sea lion\n1,0,cat\n", "0;cat\n1;sea lion\n", '0 cat\n1 "sea lion"\n',
     ",folder,word\n0,0,cat\n1\n2,1,sea lion\n", ",words\n0,cat\n1,sea lion\n",
     ",word,sentence\n0,cat,\n1,sea lion,\n"],
)  # fmt: skip
def test_tables_of_words_may_have_spaces_or_row_numbers(table: str, tmp_path: Path) -> None:
    """Regression: class 1 was called ``sea`` with the sentence ``lion``, or got the word of another class."""
    (tmp_path / "words.txt").write_text(table)
    found = class_words(["0", "1"], tmp_path / "words.txt")
    assert (found.words, found.sentences) == ({"0": "cat", "1": "sea lion"}, {"0": (), "1": ()})
    (tmp_path / "words.txt").write_text('0 cat\n1 "sea lion" "a sea lion"\n')
    assert class_words(["0", "1"], tmp_path / "words.txt").sentences["1"] == ("a sea lion",)


def test_articles_and_signs_of_lists_are_left_out_and_an_old_encoding_is_said(tmp_path: Path) -> None:
    """Regression: prompts said "a photo of a a jaguar" and "1. It barks."; remarks on the encoding were dropped."""
    table = "0,a sea lion,- It roars.,2) It is spotted.\n1,the Käse,1. It smells.\n"
    (tmp_path / "words.csv").write_bytes(table.encode("cp1252"))
    found = class_words(["0", "1"], tmp_path / "words.csv")
    assert found.words == {"0": "sea lion", "1": "Käse"}
    assert found.sentences == {"0": ("It roars.", "It is spotted."), "1": ("It smells.",)}
    assert found.notes == ("words.csv: not UTF-8, so read as Windows-1252, as in 'Käse'",)


def test_what_public_tables_of_words_hold_beside_them_is_no_prompt(tmp_path: Path) -> None:
    """Regression: colours, addresses and names of files were the only prompts, and prompts said "sea_lion"."""
    (tmp_path / "words.csv").write_text(
        "0,sea_lion,#ff0000\n1,a\xa0dog,https://a.b/dog\n2,owl,ff8000\n3,fox,fox.jpeg\n"
    )
    found = class_words(list("0123"), tmp_path / "words.csv")
    assert [*found.words.values()] == ["sea lion", "a dog", "owl", "fox"]
    assert not any(found.sentences.values())


@pytest.mark.parametrize(
    "form", ["{id} {word}, {more}", "{id} 7 {word}, {more}", "{id}\t{word}, {more}", '{id},"{word}, {more}"']
)
def test_synonyms_of_synsets_are_no_part_of_the_word(form: str, tmp_path: Path) -> None:
    """Regression: with the words of Tiny ImageNet, prompts said "a photo of a dog, domestic dog, Canis familiaris"."""
    rows = [("n02084071", "dog", "domestic dog, Canis familiaris"), ("n04037443", "race_car", "racer")]
    lines = [form.format(id=wnid, word=word, more=more) for wnid, word, more in rows]
    (tmp_path / "words.txt").write_text("\n".join(lines))
    found = class_words(["n02084071", "n04037443"], tmp_path / "words.txt")
    assert found.words == {"n02084071": "dog", "n04037443": "race car"}
    assert not any(found.sentences.values())


def test_what_only_resembles_these_signs_stays(tmp_path: Path) -> None:
    """Regression: templates and Airbus's A were left out, and rows for folders such as "n02084071 dog" not found."""
    names = ["n02084071 dog", "n04037443-car"]
    (tmp_path / "words.csv").write_text(f"{names[0]},A 320,photo:{{}}\n{names[1]},A 380,{{}}/animal\n")
    found = class_words(names, tmp_path / "words.csv")
    assert [*found.words.values()] == ["A 320", "A 380"]
    assert [*found.sentences.values()] == [("photo:{}",), ("{}/animal",)]


def test_numbers_in_a_table_of_words_are_no_sentences(tmp_path: Path) -> None:
    """Regression: the numbers of images, in a public table, became prompts of the class."""
    (tmp_path / "words.csv").write_text(
        "Label, Name, Train Images, Text\nn0, cat , 131, a {} at home\nn1, dog , 27.5 %,\n"
    )
    found = class_words(["n0", "n1"], tmp_path / "words.csv")
    assert found.sentences == {"n0": ("a {} at home",), "n1": ()}
    assert found.notes[-1] == "fields of words.csv without words, which are no sentences: 2, such as '131'"


def test_json_gives_words_or_sentences(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text('{"sea lion": ["A {} swims.", "It barks, too."], "dog": "hound"}')
    found = class_words(["dog", "sea_lion"], tmp_path / "words.json")
    assert found.words == {"dog": "hound", "sea_lion": "sea lion"}
    assert found.sentences == {"dog": (), "sea_lion": ("A {} swims.", "It barks, too.")}
    (tmp_path / "words.json").write_text('{"0": ["n01440764", "tench"], "1": ["n02123045", "tabby"]}')
    assert class_words(["0", "1"], tmp_path / "words.json").sentences == {"0": ("tench",), "1": ("tabby",)}
    (tmp_path / "words.json").write_text('[["dog", "hound"]]')
    with pytest.raises(UserError, match="JSON needs a word or sentences for each class"):
        class_words(["dog"], tmp_path / "words.json")


@pytest.mark.parametrize("numbers", [("0", "1", "2"), ("0.0", "1.0", "2.0")])
def test_a_table_that_counts_from_another_number_is_refused(numbers: tuple[str, str, str], tmp_path: Path) -> None:
    """Regression: every class got the word of the next one."""
    (tmp_path / "words.csv").write_text("id,word\n{},cat\n{},dog\n{},bird\n".format(*numbers))
    with pytest.raises(UserError, match="has a class 0, which the images lack, and no class 3"):
        class_words(["1", "2", "3"], tmp_path / "words.csv")
    assert class_words(["1", "2"], tmp_path / "words.csv").words == {"1": "dog", "2": "bird"}  # a part of the classes
    assert class_words(["1", "40"], tmp_path / "words.csv").words == {"1": "dog", "40": "40"}  # ids, one without a word


@pytest.mark.parametrize("written", ["0 1 10", "00 01 10", "0.0 1.0 10.0"])
@pytest.mark.parametrize("names", [["0", "1", "10"], ["00000", "00001", "00010"]])
def test_a_number_is_a_class_however_it_is_written(written: str, names: list[str], tmp_path: Path) -> None:
    """Regression: class 10 had the word of 1.0, and GTSRB's table of words was refused."""
    rows = zip(written.split(), ("cat", "dog", "fox"), strict=True)
    (tmp_path / "words.csv").write_text("ClassId,Name\n" + "".join(f"{number},{word}\n" for number, word in rows))
    assert [*class_words(names, tmp_path / "words.csv").words.values()] == ["cat", "dog", "fox"]


def test_a_species_with_its_author_is_no_sentence(tmp_path: Path) -> None:
    """Regression: Pl@ntNet's table of species was refused."""
    (tmp_path / "words.csv").write_text("p,Pelargonium capitatum (L.) L'Hér.\nq,birds of genus Parus spp.\n")
    words = class_words(["p", "q"], tmp_path / "words.csv").words
    assert words == {"p": "Pelargonium capitatum (L.) L'Hér.", "q": "birds of genus Parus spp."}


def test_classes_with_the_same_sentences_are_refused(tmp_path: Path) -> None:
    """Regression: a column of super-classes became the only prompt of each class, the same one for several classes."""
    (tmp_path / "words.csv").write_text("id,name,supercategory\n0,cat,animal\n1,car,vehicle\n2,dog,animal\n")
    with pytest.raises(UserError, match="'0' and '2'"):
        class_words(["0", "1", "2"], tmp_path / "words.csv")
    (tmp_path / "words.csv").write_text("0,cat,a {} at home\n1,dog,a {} at home\n")
    assert class_words(["0", "1"], tmp_path / "words.csv").sentences["1"] == ("a {} at home",)
