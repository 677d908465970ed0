"""Malformed folders, tables and project files: the commands do their work, or end with a message and exit code 2.

Each case is drawn from its seed alone. Each test tries every twentieth of 80 seeds, and all in ``make fuzz``.
"""

import csv
import io
import os
import random
import re
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from bolt.image_folders import is_system, part_folders, unused_notes
from orchestrator.catalog import load_catalog
from orchestrator.cli.app import app
from orchestrator.datasets.routes.tar_shards import read_shards
from orchestrator.util.errors import UserError
from tests.fuzz.cases import ODD, WIDE, written
from tests.helpers.photographs import CLASSES, write_photographs

SEEDS = range(80) if WIDE else range(0, 80, 20)
NAMES = (
    "cat", "Dog", "01-bird", "01_bird", "a b", "ä", "дом", "🐍", "train", "test", "all", "val", ".hidden", "__MACOSX",
    "x.jpg", "-o", "--help", "a\nb", "a\tb", "null", "1e3", "{}", "%s", "'", '"', "#", "a:b", "y" * 200, "\udcff",
    "=1+1", "\u202egpj", "<b>", "~", "$HOME", "*", "[a]", "0", "true",
)  # fmt: skip


def draw_image(random_: random.Random, path: Path) -> None:
    """Write an image of an unusual kind, or something that only looks like one."""
    size = (random_.choice((1, 2, 7, 40)), random_.choice((1, 3, 33)))
    kind = random_.choice(("good", "good", "good", "good", "mode", "cut", "empty", "text", "bomb", "folder", "link"))
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(random_.choice((path.name, "/nonexistent/x.png", "..", "/dev/null")))
    elif kind == "bomb":
        path.with_suffix(".ppm").write_bytes(b"P6\n60000 60000\n255\n")
    elif kind in ("empty", "text"):
        path.write_bytes(b"" if kind == "empty" else b"not an image")
    else:
        mode = random_.choice(("RGBA", "1", "P", "L", "LA", "I;16")) if kind == "mode" else "RGB"
        stream = io.BytesIO()
        Image.new(mode, size, None if mode == "P" else 0).save(stream, "PNG")
        content = stream.getvalue()
        path.write_bytes(content[: len(content) // 2] if kind == "cut" else content)


def draw_folder(random_: random.Random, root: Path, depth: int = 0) -> None:
    """Fill a folder with class folders, parts, loose files and links; most cases begin with a good dataset."""
    if depth == 0 and random_.random() < 0.7:
        for part in random_.choice((("",), ("train", "test"), ("train",), ("all",), ("train", "test", "all"))):
            write_photographs(root / part, random_.choice((1, 2, 5)), random_.choice((0, 9)))
    for _ in range(random_.choice((0, 1, 2, 4))):
        place = root / random_.choice(NAMES)
        try:
            match random_.choice(("image", "image", "class", "class", "deeper", "file", "loop", "remove")):
                case "image":
                    draw_image(random_, root / f"{random_.randrange(99)}.png")
                case "class":
                    place.mkdir(exist_ok=True)
                    for number in range(random_.choice((0, 1, 3))):
                        draw_image(random_, place / f"{number}.png")
                case "deeper" if depth < 3:
                    place.mkdir(exist_ok=True)
                    draw_folder(random_, place, depth + 1)
                case "file":
                    place.write_bytes(random_.randbytes(20))
                case "loop":
                    place.symlink_to(random_.choice((".", "..", "../..", place.name)))
                case _:
                    there = [path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()]
                    if there:
                        shutil.rmtree(random_.choice(there))
        except (OSError, ValueError):  # a name is taken, or too long
            continue


FIELDS = (
    "", " ", "../x.jpg", "/etc/passwd", "a\\b", "nope.jpg", "x" * 300, "\x00", "a,b", 'a"b', "é", 3, None, "..", "nan",
)  # fmt: skip


def draw_table(random_: random.Random, folder: Path) -> Path:
    write_photographs(folder, 4)
    header = ["path", "label", "split"][: random_.choice((2, 3))]
    parts = random_.choice((("train", "test"), ("all",), ("train", "dev"), ("",)))
    rows: list[list[Any]] = [
        [f"{name}/{number:03}.jpg", name, parts[number % len(parts)]][: len(header)]
        for name in CLASSES
        for number in range(4)
    ]
    for _ in range(random_.choice((0, 1, 1, 3))):
        row = random_.choice(rows)
        match random_.choice(("field", "field", "row", "double", "short", "long", "header")):
            case "field":
                row[random_.randrange(len(row))] = random_.choice(FIELDS)
            case "row":
                rows.remove(row)
            case "double":
                rows.append(list(row))
            case "short":
                row.pop()
            case "long":
                row.append("more")
            case _:
                header[random_.randrange(len(header))] = random_.choice(("", "path", "label", "Image", "class", "y"))
        rows = [each for each in rows if each] or [["a.jpg", "b"]]
    if random_.random() < 0.35:
        table = folder / "list.parquet"
        values: list[Any] = [0, None, 1.5, b"\xff", ["a"], {"a": 1}, True]
        names = dict.fromkeys(header)
        columns = {name: [row[at] if at < len(row) else None for row in rows] for at, name in enumerate(names)}
        if random_.random() < 0.5:
            columns[random_.choice(list(columns))] = [random_.choice(values)] * len(rows)
        try:
            pq.write_table(pa.table(columns), table)
        except (pa.ArrowException, ValueError, TypeError):
            table.write_bytes(b"PAR1" + random_.randbytes(40))
        if random_.random() < 0.3:
            table.write_bytes(table.read_bytes()[: random_.randrange(1, 200)])
        return table
    table = folder / random_.choice(("list.csv", "list.csv", "list.csv", "list.txt", "LIST.CSV"))
    stream = io.StringIO()
    csv.writer(stream, delimiter=random_.choice(",,,,;\t")).writerows([header, *rows])
    content = stream.getvalue().encode(random_.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")), "replace")
    match random_.choice(("", "", "", "cut", "quote", "empty", "long", "bytes")):
        case "cut":
            content = content[: random_.randrange(len(content))]
        case "quote":
            content = content.replace(b"/", b'"', 1)
        case "empty":
            content = random_.choice((b"", b"\n\n", b"path,label\n"))
        case "long":
            content += b"x" * 200_000
        case "bytes":
            content += random_.randbytes(10)
    table.write_bytes(content)
    return table


def draw_project(random_: random.Random, data: Any) -> Any:
    """Replace, remove or rename one to three values of ``data``; return the result."""
    for _ in range(random_.choice((1, 1, 2, 3))):
        places = [(data, key) for key in data]
        while places and random_.random() < 0.7 and isinstance(inner := places[0][0][places[0][1]], dict) and inner:
            places = [(inner, key) for key in inner]
        if not places:
            return data
        holder, key = random_.choice(places)
        match random_.choice(("replace", "replace", "remove", "rename", "whole")):
            case "replace":
                holder[key] = random_.choice(ODD)
            case "remove":
                del holder[key]
            case "rename":
                holder[random_.choice(NAMES)] = holder.pop(key)
            case _ if random_.random() < 0.2:
                return random_.choice(ODD)
    return data


def ends_well(*words: str, codes: tuple[int, ...] = (0, 2)) -> bool:
    """Run a command in this process; return whether it succeeds.

    Checks that an error has a short message without a traceback.
    """
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, UserError):
        text = str(done.exception)
        assert text.strip(), words
        assert len(text) < 4000, (words, text)
        assert "Traceback" not in text
        return False
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, repr(done.exception))
    assert done.exit_code in codes, (words, done.output)
    return done.exit_code == 0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the commands."""
    monkeypatch.chdir(tmp_path)
    for variable in ("BOLT_STORE", "BOLT_DATA"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def found_in(folder: Path) -> int:
    """Return how many files a folder holds, without hidden files and files in folders of operating systems."""
    found = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_system(name)]
        found += sum(not name.startswith(".") for name in files)
    return found


def used_and_named(folder: Path, place: Path) -> int:
    """Return the number of images in the added dataset, plus broken images, plus the files that a note counts."""
    sizes = load_catalog([place / "catalog.yaml"]).dataset("mine").sizes
    excluded = place / "mine.excluded.txt"
    broken = len(excluded.read_text().splitlines()) if excluded.exists() else 0
    used = [path for name in ("train", "test", "all") if (path := part_folders(folder).get(name))]
    if {path.name for path in used} >= {"train", "test"}:
        used = used[:2]
    notes = unused_notes(folder, used or [folder])
    counts = [
        re.search(r"(\d+) (image|file|archive|\.\w+ file)", note) for note in notes if "hidden or system" not in note
    ]
    return sizes.train + sizes.test + broken + sum(int(count[1]) for count in counts if count)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_malformed_folder(seed: int, place: Path) -> None:
    random_ = random.Random(f"folder {seed}")
    folder = place / random_.choice(("ware", "Ware 2", "gtsrb", "дом"))
    folder.mkdir()
    draw_folder(random_, folder)
    options = ["--exclude-broken"] if random_.random() < 0.5 else []
    if seed % 4 == 0:
        quick = ["--backbone", "tiny-clip", "--methods", "zero_shot", "--threads", "1", "-o", "model"]
        assert ends_well("adapt", str(folder), *quick, *options) == (place / "model").is_dir()
    elif ends_well("data", "add", str(folder), "--name", "mine", *options):
        assert used_and_named(folder, place) == found_in(folder)
        assert ends_well("data", "verify", "mine")
        assert ends_well("plan", "mine.yaml", "--set", "shots=1")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_malformed_table(seed: int, place: Path) -> None:
    random_ = random.Random(f"table {seed}")
    table = draw_table(random_, place / "ware")
    if ends_well("data", "add", str(table), "--name", "mine"):
        assert ends_well("data", "verify", "mine")
        assert ends_well("plan", "mine.yaml", "--set", "shots=1")


def draw_tar(random_: random.Random, path: Path) -> None:
    """Write samples and other members into a tar file, maybe damaged."""
    path.parent.mkdir()
    stream = io.BytesIO()
    members: list[tuple[str, bytes]] = []
    for number in range(8):
        picture = io.BytesIO()
        Image.new("RGB", (24, 24), (30 * number, 90, 200)).save(picture, "PNG")
        members.append((f"{number:03}.png", picture.getvalue()))
        members.append((f"{number:03}.cls", random_.choice((b"0", b"1", b"cat"))))
    for _ in range(random_.choice((0, 1, 3))):
        name = random_.choice(("README.txt", "a/b/9.cls", "9.json", ".DS_Store", "9.npy", "../9.cls", "\xe9.txt", "9"))
        members.insert(random_.randrange(len(members)), (f"{len(members)}-{name}", random_.choice((b"", b"{}", b"x"))))
    if random_.random() < 0.3:
        del members[random_.randrange(len(members))]
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if random_.random() < 0.3:
            info = tarfile.TarInfo("link.png")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)
    content = stream.getvalue()
    if random_.random() < 0.3:
        content = content[: random_.randrange(len(content))]
    path.write_bytes(content)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_malformed_shard(seed: int, place: Path) -> None:
    random_ = random.Random(f"tar {seed}")
    shard = place / "ware" / "all-000.tar"
    draw_tar(random_, shard)
    if ends_well("data", "add", str(shard), "--name", "mine"):
        assert ends_well("data", "verify", "mine")
    with suppress(UserError):
        columns, notes, places = read_shards(shard)
        with tarfile.open(shard) as tar:
            members = tar.getmembers()
        images = {member.name for member in members if member.isreg() and member.name.endswith(".png")}
        texts = {member.name for member in members if member.name.endswith((".cls", ".txt", ".json"))}
        alone = {name for name in texts if f"{name.split('.')[0]}.png" not in images}
        assert len(columns.get("path", ())) == len(places) == len(images)
        named = sum(int(note.split(": ")[1].split(",")[0]) for note in notes)
        assert len(members) == len(images | texts) - len(alone) + named


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a dataset that was added: ``bolt.yaml``, ``catalog.yaml``, and the record of its images."""
    folder = tmp_path_factory.mktemp("project")
    write_photographs(folder / "pictures" / "ware", 5)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert ends_well("data", "add", "pictures/ware")
    finally:
        os.chdir(before)
    return folder


def _spoil_yaml(name: str, random_: random.Random, place: Path) -> None:
    written(place, draw_project(random_, yaml.safe_load((place / name).read_text())), name)


def _spoil_bytes(random_: random.Random, place: Path) -> None:
    path = place / random_.choice(("bolt.yaml", "catalog.yaml", "pictures/ware.checksums.json"))
    content = bytearray(path.read_bytes())
    at = random_.randrange(len(content))
    content[at : at + random_.choice((0, 1, 30))] = random_.randbytes(random_.choice((0, 1, 5)))
    path.write_bytes(content)


def _spoil_place(random_: random.Random, place: Path) -> None:
    """Put a file in place of a folder, a folder in place of a file, or random bytes as the list of excluded images."""
    match random_.choice(("folder", "link", "excluded", "store", "data")):
        case "folder":
            (place / "bolt.yaml").unlink()
            (place / "bolt.yaml").mkdir()
        case "link":
            (place / "catalog.yaml").unlink()
            (place / "catalog.yaml").symlink_to("catalog.yaml")
        case "excluded":
            (place / "pictures" / "ware.excluded.txt").write_bytes(np.random.default_rng(1).bytes(50))
        case "store":
            (place / "runs").write_text("no folder")
        case _:
            shutil.rmtree(place / "pictures" / "ware")
            (place / "pictures" / "ware").write_text("no folder")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_malformed_project(seed: int, project: Path, place: Path) -> None:
    random_ = random.Random(f"project {seed}")
    shutil.copytree(project, place, dirs_exist_ok=True)
    of_yaml = [partial(_spoil_yaml, name) for name in ("bolt.yaml", "catalog.yaml")]
    spoilers: list[Callable[[random.Random, Path], None]] = [*of_yaml, _spoil_bytes, _spoil_place]
    spoilers[seed // 10 % 4 if not WIDE else seed % 4](random_, place)
    for line in (
        "data list --domain own", "data verify ware", "plan ware.yaml --set shots=1", "status",
        "data add pictures/ware --name ware --replace",
    ):  # fmt: skip
        ends_well(*line.split(), codes=(0, 1, 2))
