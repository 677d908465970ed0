"""Every example runs unchanged, in a process of its own."""

import re
from pathlib import Path

from tests.helpers.warm_process import run_script

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *words: str) -> str:
    done = run_script(ROOT / "examples" / script, words)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_adapting_to_images_with_the_library_alone_is_better_than_not_adapting(tmp_path: Path) -> None:
    said = run("adapt_to_my_images.py", "--out", str(tmp_path / "model"))
    found = re.search(r"([\d.]+) % zero-shot, ([\d.]+) % adapted", said)
    assert found is not None, said
    assert float(found[2]) > float(found[1]) + 3
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["adapter.safetensors", "bolt.json"]


def test_the_walkthrough_draws_the_pictures_that_its_page_shows(tmp_path: Path) -> None:
    run("walkthrough.py", str(tmp_path))
    drawn = sorted(path.name for path in tmp_path.iterdir())
    shown = re.findall(r"images/(walkthrough-[\w-]+\.png)", (ROOT / "docs" / "walkthrough.md").read_text())
    assert drawn == sorted(shown)
    assert all((ROOT / "docs" / "images" / name).is_file() for name in shown)
