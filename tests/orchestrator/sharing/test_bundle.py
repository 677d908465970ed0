"""``bundle``: whatever is changed in a bundle is named, and its cells can be measured again."""

import hashlib
import io
import json
import os
import re
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from bolt.methods import METHODS
from orchestrator.analysis.verdict import RULE
from orchestrator.artifacts.head import EqualClasses
from orchestrator.cli.app import app
from orchestrator.grid.load import grid_files
from orchestrator.planning.plan import make_plan
from orchestrator.report.grid_report import read_grid_results
from orchestrator.sharing.bundle import MANIFEST, MOST_GROWTH, make_bundle, read_bundle, write_bundle
from orchestrator.sharing.rerun import rerun_bundle
from orchestrator.sharing.verify import verify_bundle
from orchestrator.store import Store
from orchestrator.store.files import LARGEST
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.helpers import small_results as made
from tests.helpers.command import invoke
from tests.orchestrator.sharing.conftest import Stores
from tests.orchestrator.sharing.test_merge import changed

CopyOf = Callable[[Store, str], Store]


def bundle_of(stores: Stores, store: Store, path: Path) -> Path:
    make_bundle(make_plan(stores.world.grid, stores.world.catalog, store), grid_files(stores.grid_file), store, path)
    return path


@pytest.fixture(scope="session")
def bundle(stores: Stores, whole: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the whole grid; do not change it."""
    return bundle_of(stores, whole, tmp_path_factory.mktemp("bundle") / "small.bundle.zip")


def rewritten(bundle: Path, to: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of a bundle with other files, and a manifest and checksums that fit them."""
    content = read_bundle(bundle)
    files = dict(content.files)
    change(files)
    manifest = {name: value for name, value in content.manifest.items() if name not in ("format", "files")}
    write_bundle(to, manifest, files)
    return to


def named(path: Path) -> set[str]:
    """The files that ``verify`` names."""
    return set(verify_bundle(path)[0].problems)


def test_a_bundle_holds_what_its_tables_are_made_of(bundle: Path, stores: Stores, whole: Store) -> None:
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
        for cell in stores.cells:
            for name in (f"results/{cell.id}.json", f"results/{cell.id}.npz"):
                assert archive.read(name) == whole.files.read(name)
        assert archive.read("grid/0-world.yaml") == stores.grid_file.read_bytes()
        manifest = json.loads(archive.read(MANIFEST))
        catalog = json.loads(archive.read("catalog.json"))
    assert set(manifest["files"]) == names - {MANIFEST}
    assert manifest["measured_with"][0]["versions"]["torch"]
    assert list(catalog["datasets"]) == list(stores.world.grid.datasets)
    found, computed = verify_bundle(bundle)
    assert [result.cell for result in found.results] == list(stores.cells)
    assert (list(found.cells), found.problems) == ([cell.id for cell in stores.cells], {})
    assert {"rows.csv", "verdict.json"} < set(computed) <= names


def test_the_verdict_of_a_bundle_is_that_of_the_report(bundle: Path, stores: Stores, whole: Store) -> None:
    results = read_grid_results(make_plan(stores.world.grid, stores.world.catalog, whole), whole)
    limit = EqualClasses("tiny", stores.cells[0].dataset.name, 4, 2, (("a", "b"), ("c", "d")))
    limit = replace(limit, backbone=stores.cells[0].backbone.name)
    limited = replace(results, text_limits=(limit,))
    assert json.loads(read_bundle(bundle).files["verdict.json"]) == json.loads(json.dumps(results.verdict_records()))
    assert any(record["text_limits"] for record in limited.verdict_records())
    assert TypeAdapter(EqualClasses).validate_json(json.dumps(asdict(limit))) == limit


def test_two_bundles_differ_in_their_date_only(bundle: Path, stores: Stores, whole: Store, tmp_path: Path) -> None:
    again = read_bundle(bundle_of(stores, whole, tmp_path / "again.zip"))
    assert again.files == read_bundle(bundle).files


def test_any_changed_byte_is_noticed(bundle: Path, tmp_path: Path) -> None:
    content = bundle.read_bytes()
    places = {0, 10, 30, len(content) - 1, len(content) - 70, len(content) - 80, len(content) - 90}
    places |= set(np.random.default_rng(0).integers(0, len(content), 60).tolist())
    path = tmp_path / "changed.zip"
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert read_bundle(path).problems, place

    with zipfile.ZipFile(bundle) as archive:
        entry = archive.infolist()[5]
    place = entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert named(path) == {entry.filename}


def test_a_missing_and_an_added_file_are_named(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "repacked.zip"
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(path, "w") as target:
        missing = source.namelist()[4]
        for name in source.namelist():
            if name != missing:
                target.writestr(name, source.read(name))
        target.writestr("results/added.json", "{}")
    assert named(path) == {missing, "results/added.json"}


def _edited(name: str, old: str, new: str) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        assert old.encode() in files[name]
        files[name] = files[name].replace(old.encode(), new.encode(), 1)

    return change


def test_a_number_that_the_results_do_not_give_is_named_although_checksums_fit(bundle: Path, tmp_path: Path) -> None:
    """Whoever changes a bundle can compute its checksums again. Then the computed tables differ."""
    with zipfile.ZipFile(bundle) as archive:
        rows, verdicts = archive.read("rows.csv").decode(), json.loads(archive.read("verdict.json"))
        header, line = rows.splitlines()[:2]
        result_name = next(name for name in archive.namelist() if name.startswith("results/"))
        result = json.loads(archive.read(result_name))

    def problems(change: Callable[[dict[str, bytes]], None]) -> dict[str, str]:
        return dict(verify_bundle(rewritten(bundle, tmp_path / "changed.zip", change))[0].problems)

    accuracy = line.split(",")[header.split(",").index("accuracy")]
    ((file, what),) = problems(_edited("rows.csv", accuracy, "99.5")).items()
    assert file == "rows.csv"
    assert all(text in what for text in ("line 2", "accuracy", "99.5", accuracy))
    ((file, what),) = problems(_edited("verdict.json", json.dumps(verdicts[0]["methods"][0]["mean"]), "99.5")).items()
    assert file == "verdict.json"
    assert "methods[0].mean" in what
    for name, content in (("tables/better.csv", b"a\n1\n"), ("text_limits.json", b"[1]")):
        assert set(problems(lambda files, new=(name, content): files.update([new]))) == {name}  # type: ignore[misc]
    assert set(problems(lambda files: files.__delitem__("text_limits.json"))) == {"text_limits.json"}
    table = next(name for name in read_bundle(bundle).files if name.startswith("tables/") and "verdict" not in name)
    number = re.findall(r"\d+\.\d+", read_bundle(bundle).files[table].decode())[0]
    assert set(problems(_edited(table, number, "99.5"))) == {table}
    correct = f'"correct": {result["evaluations"][0]["correct"]}'
    assert result_name in problems(_edited(result_name, correct, '"correct": 1'))


def test_replaced_predictions_and_removed_cells_are_named_although_checksums_fit(bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        first, second = [name for name in archive.namelist() if name.endswith(".npz")][:2]

    def swap(files: dict[str, bytes]) -> None:
        files[first] = files[second]

    def drop(files: dict[str, bytes]) -> None:
        del files[first], files[first.replace(".npz", ".json")]

    assert named(rewritten(bundle, tmp_path / "swapped.zip", swap)) == {first}
    assert named(rewritten(bundle, tmp_path / "dropped.zip", drop)) >= {"rows.csv", "verdict.json"}


def test_an_unfinished_grid_can_be_bundled(stores: Stores, whole: Store, copy_of: CopyOf, tmp_path: Path) -> None:
    store = copy_of(whole, "part")
    failed = stores.cells[3].id
    for cell in stores.cells[3:]:
        store.files.remove(f"results/{cell.id}.json")
    store.write_failure(Failure(failed, "ValueError: no", "", "", 1, "2026-01-01"))
    path = bundle_of(stores, store, tmp_path / "part.zip")
    found, _ = verify_bundle(path)
    assert (len(found.cells), len(found.results), found.problems) == (len(stores.cells), 3, {})
    files = read_bundle(path).files
    assert f"failures/{failed}.json" in files
    states = pd.read_csv(io.BytesIO(files["tables/cells_without_result.csv"]), index_col="cell")["state"]
    assert states[states == "failed"].index.tolist() == [failed]
    counts = pd.read_csv(io.BytesIO(files["tables/missing.csv"]))[["failed", "missing"]].sum()
    assert counts.tolist() == [1, len(stores.cells) - 4]
    with pytest.raises(UserError, match="no cell"):
        bundle_of(stores, Store(tmp_path / "empty"), path)


def test_cells_measured_again_are_the_same(bundle: Path, stores: Stores, whole: Store, tmp_path: Path) -> None:
    """The artifacts are built anew in an empty store, which gets no results."""
    settings = replace(stores.world.settings, store_url=str(tmp_path / "fresh"))
    found = list(rerun_bundle(bundle, settings, limit=3))
    assert [rerun.same for rerun in found] == [True, True, True], found
    assert {rerun.cell_id for rerun in found} <= whole.result_ids()
    assert not Store(settings.store_url).result_ids()
    another = list(rerun_bundle(bundle, settings, limit=3, seed=1))
    assert [rerun.cell_id for rerun in another] != [rerun.cell_id for rerun in found]


def test_a_method_that_is_not_installed_is_named(bundle: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """``rerun``, ``inspect`` and ``export`` ended with a traceback, and ``verify`` named tables with other titles."""
    monkeypatch.delitem(METHODS, "zero_shot")
    with pytest.raises(UserError, match="not installed: zero_shot"):
        verify_bundle(bundle)
    with pytest.raises(UserError, match="no 'zero_shot'\n  install the package"):
        list(rerun_bundle(bundle, stores.world.settings, limit=1))


def test_an_invented_result_is_found_by_measuring(
    stores: Stores, whole: Store, copy_of: CopyOf, tmp_path: Path
) -> None:
    """A forged result with fitting predictions, tables and checksums passes ``verify``; ``rerun`` finds it."""
    store = copy_of(whole, "forged")
    forged = stores.cells[1].id
    changed(store, forged, flips=5)
    path = bundle_of(stores, store, tmp_path / "forged.zip")
    assert not named(path)
    found = {rerun.cell_id: rerun for rerun in rerun_bundle(path, stores.world.settings, limit=100)}
    assert [cell_id for cell_id, rerun in found.items() if not rerun.same] == [forged]
    assert found[forged].other_predictions == 5
    assert found[forged].accuracy_now == whole.read_result(forged).evaluations[0].accuracy


def test_the_commands(bundle: Path, stores: Stores, whole: Store, tmp_path: Path) -> None:
    def run(*words: object) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["bundle", *map(str, words)])
        return found.exit_code, found.output

    path = tmp_path / "b.zip"
    invoke("bundle", stores.grid_file, "-o", path, "--store", whole.url)
    assert path.is_file()
    invoke("bundle", "verify", path)
    assert invoke("bundle", "rerun", path, "--limit", 1, "--store", whole.url, "--device", "cpu").startswith("same")
    damaged = rewritten(path, tmp_path / "c.zip", lambda files: files.update({"rows.csv": b""}))
    code, text = run("verify", damaged)
    assert code == 1
    assert "rows.csv" in text
    shutil.copy(stores.grid_file, tmp_path / "d.zip")
    assert run("verify", tmp_path / "d.zip")[0] == 1
    with pytest.raises(UserError):
        invoke("bundle", "verify", tmp_path / "e.zip")


def test_a_verdict_by_an_earlier_rule_is_not_compared_and_everything_else_is(bundle: Path, tmp_path: Path) -> None:
    def earlier(files: dict[str, bytes], row: bytes = b"") -> None:
        records = [{**record, "best_set": []} for record in json.loads(files["verdict.json"])]
        files["verdict.json"] = json.dumps([{k: v for k, v in r.items() if k != "rule"} for r in records]).encode()
        files["rows.csv"] += row

    found, computed = verify_bundle(rewritten(bundle, tmp_path / "earlier.zip", earlier))
    assert found.problems == {}
    assert "rows.csv" in computed
    assert "verdict.json" not in computed
    assert "verdict.json" in verify_bundle(bundle)[1]
    assert named(rewritten(bundle, tmp_path / "b.zip", lambda files: earlier(files, b"x\n"))) == {"rows.csv"}
    assert "earlier rule" in invoke("bundle", "verify", tmp_path / "earlier.zip")


def test_a_bundle_of_an_earlier_version_may_lack_columns_and_tables(bundle: Path, tmp_path: Path) -> None:
    """Bundles written before there were metrics were called changed."""
    with zipfile.ZipFile(bundle) as archive:
        rows, verdicts = pd.read_csv(archive.open("rows.csv"), dtype=str), json.loads(archive.read("verdict.json"))
        table = next(name for name in archive.namelist() if name.startswith("tables/") and "verdict" not in name)

    def older(files: dict[str, bytes], rule: int, accuracy: str = "") -> None:
        files["verdict.json"] = json.dumps([{**record, "rule": rule} for record in verdicts]).encode()
        changed = rows.drop(columns=["metric", "score"])
        changed.loc[0, "accuracy"] = accuracy or changed["accuracy"][0]
        files["rows.csv"] = changed.to_csv(index=False).encode()
        del files[table]

    found, computed = verify_bundle(rewritten(bundle, tmp_path / "a.zip", lambda files: older(files, RULE - 1)))
    assert found.problems == {}
    assert "rows.csv" in computed
    assert table not in computed
    assert named(rewritten(bundle, tmp_path / "b.zip", lambda files: older(files, RULE - 1, "99.5"))) == {"rows.csv"}
    assert named(rewritten(bundle, tmp_path / "c.zip", lambda files: older(files, RULE))) == {"rows.csv", table}
    for content in (b"", b"other\n1\n", b"cell_id\n" + b"x" * 200_000):  # more than a field of Python's csv may have

        def emptied(files: dict[str, bytes], content: bytes = content) -> None:
            older(files, RULE - 1)
            files["rows.csv"] = content

        assert named(rewritten(bundle, tmp_path / "d.zip", emptied)) == {"rows.csv"}


def test_verdicts_that_change_have_another_rule() -> None:
    """If this test fails, raise ``RULE``: bundles hold verdicts, and those of another version would look changed."""
    methods, names = {"zero_shot": 50.0, "bolt": 62.0, "lora": 61.5, "linear_probe": 55.0}, made.DATASETS[:6]
    whole = made.grid(methods, seeds=(1, 2))
    uneven = [one for one in whole if one.cell.shots != 4 or one.cell.dataset.name < "f"]
    failed = [one for one in whole if not made.is_cell(one, "bolt", "ants", 4)]
    across = [
        made.result(
            made.cell(name, "ants", seed=seed, track="cross_dataset", evaluate_on=names),
            *(accuracy + i for i in range(6)),
        )
        for name, accuracy in (("bolt", 60.0), ("lora", 59.5))
        for seed in (1, 2)
    ]
    both = [*whole, *made.grid(methods, domain="other", datasets=names, ks=(4, 8))]
    few = made.grid(methods, datasets=names[:3])
    records = [made.arrange(results).verdict_records() for results in (whole, uneven, failed, across, both, few)]
    rounded = json.loads(json.dumps(records), parse_float=lambda number: round(float(number), 6))
    text = json.dumps(rounded, sort_keys=True)
    assert (RULE, hashlib.sha256(text.encode()).hexdigest()[:12]) == (5, "b3755ae11384")


@pytest.mark.parametrize("name", [MANIFEST, "cells.json", "text_limits.json", "verdict.json"])
def test_deeply_nested_json_is_named_and_not_followed(bundle: Path, tmp_path: Path, name: str) -> None:
    nested, path = b"[" * 200_000, tmp_path / "nested.zip"
    if name != MANIFEST:
        assert named(rewritten(bundle, path, lambda files: files.update({name: nested}))) == {name}
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MANIFEST, nested)
    assert MANIFEST in named(path)


def test_an_archive_that_would_fill_the_memory_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "large.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, bytes(20_000_000))
    found = read_bundle(tmp_path / "large.zip")
    assert list(found.problems) == ["archive"]
    assert str(MOST_GROWTH) in found.problems["archive"]


def test_a_large_member_is_not_read(tmp_path: Path) -> None:
    """The archive is large enough for what it unpacks to."""
    path = tmp_path / "large.zip"
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("rows.csv", "w", force_zip64=True) as member:
        noise = os.urandom(2**20)
        for number in range(LARGEST // 2**20 + 1):
            member.write(noise if number < 4 else bytes(2**20))
    tracemalloc.start()
    found = read_bundle(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "257 MiB" in found.problems["rows.csv"]
    assert peak - path.stat().st_size < 2**24


def test_a_file_that_is_larger_than_any_bundle_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.zip").open("wb") as stream:
        stream.truncate(2**33)  # takes no place on the disk
    assert "8 GiB" in read_bundle(tmp_path / "huge.zip").problems["archive"]
