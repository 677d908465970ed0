"""``predict``: labels of folders, lists and files, and what is left to a person."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit
from torch.nn import functional as F
from typer.testing import CliRunner, Result

import bolt
from bolt.__main__ import make_app
from bolt.clip.backbone import Backbone
from bolt.clip.checkpoint_files import files_digest
from bolt.model.labels import Journal, label_images
from bolt.model.model import Model
from bolt.model.threshold import NOTE, NoThreshold, choose_threshold, held_out_note
from bolt.task.classifiers import CosineClassifier
from tests.bolt.model.pictures import picture as coloured
from tests.helpers.waiting import TIMEOUT

NAMES = ["red things", "green/blue"]


@pytest.fixture(scope="module")
def model(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """Save a model that was right on 200 held-out images with high scores and wrong on half of 100 others."""
    place = tmp_path_factory.mktemp("model")
    made = bolt.adapt(backbone, [picture(n) for n in range(8)], [n % 2 for n in range(8)], NAMES, method="linear_probe")
    scores = [*np.linspace(0.52, 0.9, 200), *np.linspace(0.3, 0.5, 100)]
    notes = {NOTE: held_out_note(scores, [True] * 250 + [False] * 50)}
    made = replace(made, about=replace(made.about, notes=notes))
    made.save(place / "model", "state_dict")
    made.save(place / "adapter", "adapter")
    return place / "model", made


def picture(number: int) -> Image.Image:
    return coloured(number % 2, np.random.default_rng(number))


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make six images and some other files in nested folders, and change to the folder above."""
    for number, name in enumerate(("0.png", "1.png", "a/0.png", "a/b/0.png", "a/b/1.png", "c/ü.png")):
        path = tmp_path / "pics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    (tmp_path / "pics/a/broken.jpg").write_bytes(b"no image")
    (tmp_path / "pics/a/gone.png").symlink_to("nowhere")
    (tmp_path / "pics/c/x.heic").touch()
    (tmp_path / "pics/c/notes.txt").touch()
    (tmp_path / "pics/.trash").mkdir()
    picture(1).save(tmp_path / "pics/.trash/old.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: object, listed: bytes = b"") -> Result:
    return CliRunner().invoke(make_app(), ["predict", *map(str, words)], input=listed, catch_exceptions=False)


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_the_home_folder_is_found_where_no_shell_replaces_its_sign(
    model: tuple[Path, Model], pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(pictures))
    assert run(model[0], "~/pics/a", "-o~/at-home.csv").exit_code == 0
    assert (pictures / "at-home.csv").is_file()


def test_every_image_has_its_row_and_what_is_no_image_is_named(model: tuple[Path, Model], pictures: Path) -> None:
    folder, loaded = model
    done = run(folder, "pics", "-o", "labels.csv")
    assert done.exit_code == 0
    rows = read_csv(Path("labels.csv").read_text("utf-8"))
    assert [row["path"] for row in rows] == [
        "pics/0.png", "pics/1.png", "pics/a/0.png", "pics/a/b/0.png", "pics/a/b/1.png", "pics/c/ü.png"
    ]  # fmt: skip
    for row, expected in zip(rows, loaded.predict([row["path"] for row in rows]), strict=True):
        second = next(name for name in NAMES if name != expected.label)
        assert (row["label"], row["second_label"]) == (expected.label, second)
        assert float(row["score"]) == pytest.approx(expected.score, abs=1e-6)
        assert float(row["margin"]) == pytest.approx(expected.score - expected.scores[second], abs=1e-6)
    assert "6 images labelled" in done.stderr
    for named in ("not read: 2 of 8", "pics/a/broken.jpg: cannot be decoded", "pics/a/gone.png: No such file",
                  "1 .heic file", "1 file without an image suffix", "1 image in hidden"):  # fmt: skip
        assert named in done.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["labels.csv", "pics"]
    assert read_csv(run(folder, "pics").stdout) == rows
    assert "is there already" in run(folder, "pics", "-o", "labels.csv").stderr


def test_what_is_not_used_of_an_image_is_said(model: tuple[Path, Model], pictures: Path) -> None:
    """Regression: a scan of several pages got the label of its first page without a word."""
    picture(0).save("pics/two.gif", save_all=True, append_images=[picture(1)])
    done = run(model[0], "pics/two.gif", "pics/0.png")
    assert "note: only the first frame is used: 1 of 2 images" in done.stderr
    assert {*read_csv(done.stdout)[0]} == {"path", "label", "score", "second_label", "margin"}


def test_a_model_of_one_class_has_no_second_label(backbone: Backbone, pictures: Path) -> None:
    bolt.adapt(backbone, [picture(0)], [0], ["red"], method="zero_shot").save(pictures / "one", "state_dict")
    (row,) = read_csv(run(pictures / "one", "pics/0.png").stdout)
    assert row == {"path": "pics/0.png", "label": "red", "score": "1.0", "second_label": "", "margin": "1.0"}


def test_the_second_label_is_that_of_the_logits(model: tuple[Path, Model], pictures: Path) -> None:
    """Regression: if one probability is 1 and the others are 0, the second label was the first of the others."""
    names, features = ("a", "b", "c", "d"), model[1].tower.shape.embed_dim
    head_CD = torch.randn(4, features, generator=torch.Generator().manual_seed(5))
    about = replace(model[1].about, class_names=names)
    made = replace(model[1], classifier=CosineClassifier(F.normalize(head_CD), 1e6), about=about)
    paths = ["pics/0.png", "pics/1.png", "pics/a/0.png", "pics/a/b/1.png"]
    rows = list(label_images(made, paths))
    assert {row.score for row in rows} == {1.0}
    for row, order in zip(rows, made.logits(paths).argsort(descending=True).tolist(), strict=True):
        assert (row.label, row.second_label) == (names[order[0]], names[order[1]])


def test_a_list_of_paths_may_name_files_folders_and_nothing(model: tuple[Path, Model], pictures: Path) -> None:
    raw = os.fsdecode(b"pics/\xff.png")
    picture(1).save(pictures / raw)
    listed = b"\xef\xbb\xbfpics/c/\xc3\xbc.png\r\n\npics/a\nnowhere.png\n" + os.fsencode(raw)
    done = run(model[0], "-", "-o", "labels.jsonl", listed=listed)
    rows = [json.loads(line) for line in Path("labels.jsonl").read_text("utf-8").splitlines()]
    assert [row["path"] for row in rows] == ["pics/c/ü.png", "pics/a/0.png", "pics/a/b/0.png", "pics/a/b/1.png", raw]
    assert "not read: 3 of 8" in done.stderr
    assert r"pics/\udcff.png" in run(model[0], raw).stdout
    nothing = run(model[0], "-", "-o", "none.csv", listed=b"nowhere.png\n")
    assert (nothing.exit_code, Path("none.csv").exists()) == (1, False)
    Path("list.txt").write_bytes(listed)
    assert "it is text" in (said := run(model[0], "list.txt", "pics").stderr)
    assert "- in its place" in said
    assert "- in its place" not in run(model[0], "pics").stderr
    for other in ("pics/0.png\r\n".encode("utf-16"), b"pics/0.png\0pics/1.png\0"):
        unread = run(model[0], "-", listed=other)
        assert (unread.exit_code, "one per line" in unread.stderr) == (1, True)


def test_a_threshold_leaves_the_others_to_a_person(model: tuple[Path, Model], pictures: Path) -> None:
    folder, loaded = model
    threshold = choose_threshold(loaded.about.notes, 95)
    done = run(folder, "pics", "--accuracy", 95, "-o", "labels.csv", "--sort-into", "sorted")
    rows = read_csv(Path("labels.csv").read_text("utf-8"))
    for row in rows:
        assert row["unsure"] == str(float(row["score"]) < threshold.score)
    sure = sum(row["unsure"] == "False" for row in rows)
    assert f"of 6 images, {sure} are labelled with" in done.stderr or sure == 0
    links = [path for path in Path("sorted").rglob("*") if path.is_symlink()]
    assert sorted(os.path.realpath(link) for link in links) == sorted(os.path.realpath(row["path"]) for row in rows)
    labels = {os.path.realpath(row["path"]): row for row in rows}
    for link in links:
        row = labels[os.path.realpath(link)]
        kind = "unsure" if row["unsure"] == "True" else "labelled"
        assert link.parent == Path("sorted", kind, row["label"].replace("/", "_"))
    assert "--accuracy" in run(folder, "pics", "--accuracy", 99.9).stderr
    assert read_csv(run(folder, "pics", "--unsure").stdout) == rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pics", "--accuracy", "0.95"], "percentage"),
        (["pics", "-o", "labels.xlsx"], ".csv"),
        (["pics", "-o", "nowhere/labels.csv"], "no folder"),
        (["pics", "-o", "labels.csv", "--sort-into", "./labels.csv"], "name two paths"),
        (["nowhere"], "no file or folder nowhere"),
        (["pics/c/x"], "no images"),
    ],
)
def test_wrong_options_are_refused(model: tuple[Path, Model], pictures: Path, words: Sequence[str], said: str) -> None:
    (pictures / "pics/c/x").mkdir()
    done = run(model[0], *words)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
    assert said not in run(model[0].with_name("adapter"), "pics").stderr
    assert "--as state_dict" in run(model[0].with_name("adapter"), "pics").stderr
    assert "bolt.json" in run("pics", "pics").stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_is_named_with_the_file(model: tuple[Path, Model], pictures: Path) -> None:
    """Regression: ``No space left on device`` did not say on which of several disks."""
    command = [sys.executable, "-B", "-m", "bolt", "predict", str(model[0]), "pics"]
    small = [sys.executable, "-c", "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); "
             "os.execv(sys.argv[1], sys.argv[1:])"]  # fmt: skip
    for words, output, named in (([*small, *command, "-o", "x.csv"], os.devnull, ".x.csv.part"),
                                 (command, "/dev/full", "standard output")):  # fmt: skip
        with open(output, "wb") as stream:
            done = subprocess.run(words, stdout=stream, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
        assert done.returncode == 2
        assert named in done.stderr
    assert run(model[0], "pics", "-o", "x.csv").exit_code == 0  # continues


def test_an_image_that_was_replaced_after_a_kill_is_labelled_anew(model: tuple[Path, Model], pictures: Path) -> None:
    journal = Journal(pictures / ".labels.csv.part", files_digest([model[0] / "bolt.json"]))
    for row in label_images(model[1], journal.resume(iter(["pics/0.png", "pics/1.png"]))):
        journal.write(row)
    journal._file.close()
    picture(0).save("pics/1.png")
    assert run(model[0], "pics/0.png", "pics/1.png", "-o", "labels.csv").exit_code == 0
    first, second = (row["label"] for row in read_csv(Path("labels.csv").read_text("utf-8")))
    assert first == second == NAMES[0]


def test_a_killed_run_continues_and_leaves_no_output_before_its_end(model: tuple[Path, Model], pictures: Path) -> None:
    for number in range(600):
        os.symlink("../0.png", pictures / f"pics/c/{number:04}.png")
    command = [sys.executable, "-m", "bolt", "predict", str(model[0]), "pics", "-o", "labels.csv"]
    journal, deadline = pictures / ".labels.csv.part", time.monotonic() + TIMEOUT
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path(bolt.__file__).parents[1])}) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 10:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert not Path("labels.csv").exists()
    kept = journal.read_bytes().splitlines()[1:9]
    with journal.open("r+b") as file:
        file.truncate(sum(map(len, journal.read_bytes().splitlines(keepends=True)[:9])) + 5)
    marked = [line.replace(b'"margin": ', b'"margin": 7') for line in kept]
    journal.write_bytes(b"\n".join([journal.read_bytes().splitlines()[0], *marked, b'{"path']))
    assert run(model[0], "pics", "-o", "labels.csv").exit_code == 0
    rows = read_csv(Path("labels.csv").read_text("utf-8"))
    assert len({row["path"] for row in rows}) == len(rows) == 606
    read = [json.loads(line)[1] for line in kept]
    taken = [row["path"] for row in rows if row["margin"].startswith("7")]
    assert taken == [row["path"] for row in read if not row["error"]]
    assert not journal.exists()


def test_the_command_needs_neither_the_engine_nor_its_libraries(model: tuple[Path, Model], pictures: Path) -> None:
    code = (
        "import sys; from bolt.__main__ import make_app\n"
        f"try: make_app()(['predict', {str(model[0])!r}, 'pics', '-o', 'x.csv'])\n"
        "except SystemExit: print([name for name in ('ray', 'mlflow', 'orchestrator') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={
        **os.environ, "PYTHONPATH": str(Path(bolt.__file__).parents[1])
    })  # fmt: skip
    assert done.stdout == "[]\n", done.stderr


def test_the_threshold_keeps_its_promise() -> None:
    """In at most 5 % of 300 draws the threshold is too low, and the interval holds the accuracy of new images."""
    generator, chosen, low, outside, runs = np.random.default_rng(1), 0, 0, 0, 300
    grid = np.sort(generator.normal(size=100_000))
    accuracy_from = np.cumsum(expit(2.2 + 3 * grid)[::-1])[::-1] / np.arange(len(grid), 0, -1)
    for _ in range(runs):
        scores = generator.normal(size=400)
        note = held_out_note(expit(scores), generator.random(400) < expit(2.2 + 3 * scores))
        try:
            found = choose_threshold({NOTE: note}, 95)
        except NoThreshold:
            continue
        chosen += 1
        low += accuracy_from[np.searchsorted(expit(grid), found.score)] < 0.95
        fresh = generator.normal(size=200)
        taken = fresh[expit(fresh) >= found.score]
        right = 100 * np.mean(generator.random(len(taken)) < expit(2.2 + 3 * taken))
        lowest, highest = found.interval(len(taken))
        outside += not lowest <= right <= highest
    assert chosen > 0.75 * runs
    assert low <= 0.05 * runs
    assert outside <= 0.05 * chosen


def test_equal_scores_are_taken_together_and_an_accuracy_that_cannot_be_had_names_the_best() -> None:
    tied = {NOTE: held_out_note([0.9] * 100 + [0.5] * 100, [True] * 150 + [False] * 50)}
    found = choose_threshold(tied, 95)
    assert (found.score, found.images, found.correct) == (0.9, 100, 100)
    assert choose_threshold(tied, 60).images == 200
    with pytest.raises(NoThreshold, match="--accuracy 95"):
        choose_threshold(tied, 99)
    series = {NOTE: held_out_note([0.9] * 200, [True] * 200, 20)}
    with pytest.raises(NoThreshold, match=r" 20 series .*--accuracy 81"):
        choose_threshold(series, 95)  # 0.81 ** (20 / 1.4) < 0.05 < 0.82 ** (20 / 1.4)
    damaged = [{"correct": "x", "wrong": []}, *(series[NOTE] | {"groups": groups} for groups in (-1, 0, "nan", 201))]
    for note in (None, *damaged):
        with pytest.raises(NoThreshold, match=r"held-out|damaged"):
            choose_threshold({NOTE: note}, 95)
    with pytest.raises(NoThreshold, match="held-out"):
        choose_threshold({}, 95)


@pytest.mark.parametrize("sign", ["\r", "\n", "\r\n", ",", '"'])
def test_a_table_holds_any_name(model: tuple[Path, Model], pictures: Path, sign: str) -> None:
    """Regression: a carriage return began a new row on Python 3.11."""
    name = f"a{sign}b.png"
    picture(0).save(pictures / name)
    run(model[0], name, "pics/1.png", "-o", "labels.csv")
    content = Path("labels.csv").read_bytes()
    assert [row["path"] for row in csv.DictReader(io.StringIO(content.decode(), newline=""))] == [name, "pics/1.png"]
    assert content.replace(name.encode(), b"").count(b"\r") == 0


def test_a_terminal_is_not_obeyed_and_a_file_has_the_true_path(model: tuple[Path, Model], pictures: Path) -> None:
    name = "\x1b[31m\u202e.png"
    picture(0).save(pictures / name)
    assert f"{name}," in run(model[0], name).stdout
    read, write = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "bolt", "predict", str(model[0]), name], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    printed = os.read(read, 10_000).decode()
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in printed
    assert "\\x1b[31m\\u202e.png," in printed
