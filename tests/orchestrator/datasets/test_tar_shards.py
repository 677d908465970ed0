"""WebDataset shards become a dataset: their samples are found, named and read where they lie."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.catalog import dataset_ref, missing_data
from orchestrator.catalog.routes import expand_braces
from orchestrator.datasets.adding import DatasetOptions, add_dataset
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.routes.tar_shards import one_pattern, read_shards
from orchestrator.util.errors import UserError
from tests.helpers.photographs import photograph
from tests.helpers.small_archives import tar_of

WORDS = ("red_mug", "BlueBottle")


def jpeg(label: int, number: int) -> bytes:
    stream = io.BytesIO()
    photograph(WORDS[label], number).save(stream, "JPEG")
    return stream.getvalue()


def write_shards(folder: Path, texts: Callable[[int], dict[str, str]], *names: str) -> None:
    """Write shards of eight samples each; ``texts`` gives the texts of a class by suffix."""
    for first, name in enumerate(names):
        content = {}
        for number in range(8):
            content[f"./{number:04}.jpg"] = jpeg(number % 2, 8 * first + number)
            content |= {f"./{number:04}.{suffix}": text.encode() for suffix, text in texts(number % 2).items()}
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(tar_of(content))


SAMPLES: dict[str, Callable[[int], dict[str, str]]] = {
    "numbers and names": lambda label: {"cls": str(label), "txt": WORDS[label]},
    "names": lambda label: {"cls": WORDS[label] + "\n"},
    "one text": lambda label: {"txt": WORDS[label]},
    "fields": lambda label: {"json": json.dumps({"label": label, "name": WORDS[label], "box": [1]})},
    "a path before packing": lambda label: {"json": json.dumps({"label": WORDS[label], "path": "a.jpg"})},
}


@pytest.mark.parametrize("case", SAMPLES)
def test_the_samples_of_shards_are_a_dataset(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "mugs"
    write_shards(folder, SAMPLES[case], *(f"{number:03}.tar" for number in range(3)))
    added = add_dataset(folder / "{000..002}.tar", [tmp_path / "mine.yaml"], DatasetOptions())
    assert added.entry.name == "mugs"
    assert added.entry.class_names == {"BlueBottle": "blue bottle", "red_mug": "red mug"}
    assert (added.entry.sizes.train, added.entry.sizes.test) == (18, 6)
    assert "series" not in str(added.notes), "a shard is no series"
    raw = open_dataset(added.entry, added.data_root)
    for row, label in enumerate(raw.train.labels):
        shard, sample = raw.train.origin(row).removesuffix(".jpg").split("/")
        assert raw.class_names[label] == ("red mug", "blue bottle")[int(sample) % 2]
        with tarfile.open(folder / shard) as opened:
            stored = opened.extractfile(f"./{sample}.jpg")
            assert stored.read() == jpeg(int(sample) % 2, 8 * int(shard[:3]) + int(sample))
        assert raw.train.read(row).size == photograph(WORDS[0], 0).size
    (folder / "001.tar").unlink()
    assert "001.tar does not exist" in str(missing_data(added.entry, added.data_root))


def test_labels_that_change_in_shards_make_another_dataset(tmp_path: Path) -> None:
    """Regression: after ``--replace``, a store's results on the former labels counted for the new ones."""
    found = []
    for labels in ("01", "10"):
        write_shards(tmp_path / "mugs", lambda label: {"cls": labels[label]}, "0.tar", "1.tar")  # noqa: B023
        options = DatasetOptions(replace=labels == "10")
        added = add_dataset(tmp_path / "mugs" / "{0,1}.tar", [tmp_path / "mine.yaml"], options)
        found.append(dataset_ref(added.entry, added.data_root))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("names", "sizes", "note"),
    [
        (("train-0.tar", "train-1.tar", "val-0.tar", "test-0.tar"), (16, 8), ""),
        (("train/0.tar", "test/0.tar"), (8, 8), ""),
        (("train-0.tar", "train-1.tar"), (12, 4), ""),
        (("train-0.tar", "val-0.tar"), (12, 4), "train and val, not train and test: they are read as one part"),
    ],
)
def test_names_of_shards_tell_the_parts(tmp_path: Path, names: list[str], sizes: tuple[int, int], note: str) -> None:
    write_shards(tmp_path / "mugs", SAMPLES["names"], *names)
    pattern = one_pattern([tmp_path / "mugs" / name for name in names])
    added = add_dataset(pattern, [tmp_path / "mine.yaml"], DatasetOptions(name="mugs"))
    assert (added.entry.sizes.train, added.entry.sizes.test) == sizes
    assert note in "\n".join(added.notes)


@pytest.mark.parametrize(
    ("texts", "damage", "expected"),
    [
        ({"cls": "a"}, True, "001.tar: cannot be read as a tar file of samples"),
        ({}, False, "has no column 'label'"),
        ({"cls": "a", "mask.png": "x"}, False, "the sample 0000 has the images jpg and mask.png"),
        ({"json": "{"}, False, "cannot be read as a tar file of samples"),
        ({"txt": "x" * 2_000_000}, False, "is larger than"),
    ],
)
def test_unusable_shards_are_refused(tmp_path: Path, texts: dict[str, str], damage: bool, expected: str) -> None:
    write_shards(tmp_path / "mugs", lambda _: texts, "000.tar", "001.tar")
    if damage:
        (tmp_path / "mugs" / "001.tar").write_bytes((tmp_path / "mugs" / "001.tar").read_bytes()[:3000])
    with pytest.raises(UserError) as refusal:
        add_dataset(tmp_path / "mugs" / "{000..001}.tar", [tmp_path / "mine.yaml"], DatasetOptions())
    assert expected in str(refusal.value)
    assert not (tmp_path / "mine.yaml").exists()


def test_a_shard_of_two_joined_tar_files_is_noted(tmp_path: Path) -> None:
    """Regression: the samples of the second file were left out without a word."""
    write_shards(tmp_path, SAMPLES["names"], "0.tar", "1.tar")
    assert "end mark" not in str(read_shards(tmp_path / "0.tar")[1])
    (tmp_path / "2.tar").write_bytes((tmp_path / "0.tar").read_bytes() + (tmp_path / "1.tar").read_bytes())
    note = "parts of shards after their end mark, as in joined tar files: 1, not used"
    assert note in read_shards(tmp_path / "2.tar")[1]


def test_patterns_are_those_of_a_shell() -> None:
    assert expand_braces("{train,test}-{08..10}.tar")[2:4] == ["train-10.tar", "test-08.tar"]
    assert one_pattern([Path("/mugs/A.CSV"), Path("/mugs/B.CSV")]) == Path("/mugs/{A,B}.CSV")
    assert one_pattern([Path("/0.tar"), Path("/1.tar")]) == Path("/{0,1}.tar")
    with pytest.raises(UserError, match="are added together"):
        one_pattern([Path("a.tar"), Path("b.csv")])
