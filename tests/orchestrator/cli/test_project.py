"""``bolt.yaml`` is written by ``data add``, gives the defaults of options, and is checked like other files."""

import errno
import shutil
from pathlib import Path

import pytest
import yaml

from orchestrator.catalog import load_catalog
from orchestrator.catalog.location import grids_folder
from orchestrator.cli.options import at_home
from orchestrator.cli.project import read_project
from orchestrator.util.errors import UserError
from tests.helpers.command import invoke as run
from tests.helpers.photographs import break_file, write_photographs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder of the commands, with two folders of images that are not yet datasets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in ("BOLT_STORE", "BOLT_DATA"):
        monkeypatch.delenv(variable, raising=False)
    for first, name in enumerate(("ware", "tools")):
        write_photographs(tmp_path / "pictures" / name, 6, 10 * first)
    return tmp_path


@pytest.mark.slow
def test_data_add_writes_it_and_every_command_reads_it(folder: Path) -> None:
    added = run("data", "add", "pictures/ware")
    assert "grid ware.yaml" in added
    project = read_project()
    assert (project.catalog, project.data_root) == (("catalog.yaml",), "pictures")
    assert "ware" in run("data", "list", "--domain", "own")
    planned = run("plan", "ware.yaml", "--set", "shots=1", "--only", "method=zero_shot")
    assert str(folder / "runs") in planned
    with (folder / "bolt.yaml").open("a") as stream:
        stream.write("store: elsewhere\n")
    only = ["--set", "datasets=[ware]", "--set", "shots=1", "--only", "method=zero_shot"]
    assert str(folder / "elsewhere") in run("plan", "own", *only)
    assert str(folder / "mine") in run("plan", "own", *only, "--store", "mine"), "an option wins"


@pytest.mark.slow
def test_a_full_disk_leaves_the_project_file_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("data", "add", "pictures/ware")
    before = (folder / "bolt.yaml").read_text()
    write = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        if "bolt.yaml" in path.name:
            write(path, text[:10], **options)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    added = run("data", "add", "pictures/tools", "--catalog", "other.yaml")
    assert "--catalog other.yaml" in added
    assert (folder / "bolt.yaml").read_text() == before
    assert not list(folder.glob(".bolt.yaml*"))


def test_a_dataset_in_another_folder_is_printed_with_its_data_root(folder: Path) -> None:
    run("data", "add", "pictures/ware")
    write_photographs(folder / "other" / "cups", 6)
    added = run("data", "add", "other/cups")
    assert f"--data-root {folder / 'other'}" in added
    assert read_project().data_root == "pictures"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("catalogue: mine.yaml", "catalogue"), ("store: 3", "store"), ("data_root: [a]", "data_root"),
        ("- catalog.yaml", "bolt.yaml"), ("store: ''", "store"), ("catalog: {a: b}", "catalog"),
        ("catalog: [", "bolt.yaml"),
    ],
)  # fmt: skip
def test_a_wrong_project_file_is_named(folder: Path, text: str, named: str) -> None:
    (folder / "bolt.yaml").write_text(text + "\n")
    with pytest.raises(UserError, match=named):
        run("data", "list")


def test_doctor_makes_no_folder(folder: Path) -> None:
    assert "made by the first run" in run("doctor", "--store", "not-yet")
    assert not (folder / "not-yet").exists()


def test_a_grid_that_is_refused_leaves_no_folder(folder: Path) -> None:
    run("data", "add", "pictures/ware")
    break_file(folder / "pictures" / "ware" / "red_mug" / "001.jpg")
    (folder / "mine").mkdir()
    for store in ("not-yet", "mine"):
        with pytest.raises(UserError):
            run("grid", "ware.yaml", "--set", "shots=1", "--local", "--store", store)
    assert not (folder / "not-yet").exists()
    assert list((folder / "mine").iterdir()) == []


def test_values_that_a_filter_takes_are_listed_in_their_order(folder: Path) -> None:
    with pytest.raises(UserError, match="0, 1, 4, 16"):
        run("plan", "own", "--only", "k=5")


@pytest.mark.slow
def test_a_store_that_is_no_place_for_results_is_refused(folder: Path) -> None:
    run("data", "add", "pictures/ware")
    for store in ("", "s3:/bucket/runs", "gs:bucket", "pictures/ware", "pictures/ware/runs"):
        with pytest.raises(UserError, match="--store"):
            run("plan", "ware.yaml", "--set", "shots=1", "--store", store)
    assert not (folder / "s3:").exists()


def test_the_home_folder_is_found_where_no_shell_replaces_its_sign(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves ``--store=~/mine`` and quoted values as they are, and ``bolt.yaml`` has no shell."""
    run("data", "add", "pictures/ware", "--catalog", "own.yaml")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("BOLT_STORE", "~/mine")
    (folder / "bolt.yaml").write_text("catalog: ~/own.yaml\ndata_root: ~/pictures\n")
    planned = run("plan", "ware.yaml", "--set", "shots=1", "--only", "method=zero_shot")
    assert f"store: {folder}/mine" in planned
    assert "home.yaml" in run("data", "add", "--catalog=~/home.yaml", "--name", "at-home", "~/pictures/tools")
    assert "at-home" in (folder / "home.yaml").read_text()
    assert at_home("-o~/table.csv") == f"-o{folder}/table.csv"
    tiny = grids_folder() / "backbones"
    shutil.copytree(tiny, folder / "backbones")
    text = (tiny / "tiny.yaml").read_text().replace("tiny-clip:", "mine:").replace("backbones/", "~/backbones/")
    (folder / "own.yaml").write_text(text)
    mine = load_catalog([folder / "own.yaml"]).backbone("mine")
    assert (mine.weights.path, mine.architecture_path) == tuple(
        folder / "backbones" / f"tiny-clip.{suffix}" for suffix in ("safetensors", "json")
    )
    (folder / "one.yaml").write_text("title: One\ndescription: One.\ninclude: [~/other.yaml]\n")
    (folder / "other.yaml").symlink_to(grids_folder() / "smoke.yaml")
    assert "15 cells" in run("plan", "one.yaml")
    assert not (folder / "~").exists()
    assert f"store: {folder}/~nobody-here" in run("plan", "smoke", "--store=~nobody-here")
    for words in (
        ("data", "add", "~nobody-here/x"),
        ("adapt", "~nobody-here/x"),
        ("backbones", "add", "RN50", "--file", "~nobody-here/x"),
    ):
        with pytest.raises(UserError, match="~nobody-here"):
            run(*words)


@pytest.mark.slow
def test_the_grid_file_of_a_dataset_is_kept_once_it_is_edited(folder: Path) -> None:
    run("data", "add", "pictures/ware")
    grid = folder / "ware.yaml"
    written = grid.read_text()
    assert yaml.safe_load(written)["blocks"][0]["datasets"] == ["ware"]
    write_photographs(folder / "pictures" / "ware", 30)
    assert "was not changed" not in run("data", "add", "pictures/ware", "--replace")
    assert yaml.safe_load(grid.read_text())["blocks"][0]["shots"] == [1, 4, 16], "nobody had edited it"
    grid.write_text(written + "# mine\n")
    assert "ware.yaml exists with other text and was not changed" in run("data", "add", "pictures/ware", "--replace")
    assert grid.read_text() == written + "# mine\n"


@pytest.mark.slow
def test_a_catalog_with_the_name_of_the_dataset_is_not_taken_for_its_grid(folder: Path) -> None:
    assert "ware-grid.yaml" in run("data", "add", "pictures/ware", "--catalog", "ware.yaml")
    assert "1 cell" in run("plan", "ware-grid.yaml", "--only", "method=zero_shot", "--limit", "1")
