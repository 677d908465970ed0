"""The track and the grid in docs/adding-a-track.md run."""

import json
import re
from pathlib import Path

from tests.conftest import GiveDatabase
from tests.helpers.warm_process import run_forked

ROOT = Path(__file__).resolve().parents[2]


def test_the_track_of_the_page_is_measured_and_reported(tmp_path: Path, give_database: GiveDatabase) -> None:
    """Runs in a process of its own, because it registers the track."""
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    page = (ROOT / "docs" / "adding-a-track.md").read_text()
    for language, name in (("python", "from_test.py"), ("yaml", "grid.yaml")):
        block = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
        (tmp_path / name).write_text(block.group(1))
    script = (
        "from from_test import FROM_TEST; "
        "from orchestrator.tracks import TRACKS; TRACKS[FROM_TEST.name] = FROM_TEST; "
        "from orchestrator.__main__ import main; main()"
    )
    done = run_forked(["grid", "grid.yaml", "--local", "--store", "runs"], script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "results").glob("*.json")]
    assert {result["cell"]["track"] for result in results} == {"from_test"}
    scored = {result["cell"]["method"]["name"]: result["evaluations"][0]["total"] for result in results}
    # The largest support that is stored has 16 images of each of 8 classes.
    assert scored == {"zero_shot": 600, "linear_probe": 600 - 16 * 8}
    page_of_report = (tmp_path / "runs" / "reports" / "grid" / "index.html").read_text()
    assert "few-shot from the test split" in page_of_report
