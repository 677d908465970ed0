"""The track and the grid in docs/adding-a-track.md run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.waiting import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]


def test_the_track_of_the_page_is_measured_and_reported(tmp_path: Path) -> None:
    """Runs in a process of its own, because it registers the track."""
    page = (ROOT / "docs" / "adding-a-track.md").read_text()
    for language, name in (("python", "from_test.py"), ("yaml", "grid.yaml")):
        block = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
        assert block is not None
        (tmp_path / name).write_text(block.group(1))
    script = (
        "import sys; sys.path.insert(0, '.'); from from_test import FROM_TEST; "
        "from orchestrator.tracks import TRACKS; TRACKS[FROM_TEST.name] = FROM_TEST; "
        "from orchestrator.__main__ import main; "
        "sys.argv = ['orchestrator', 'grid', 'grid.yaml', '--local', '--store', 'runs']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "results").glob("*.json")]
    assert {result["cell"]["track"] for result in results} == {"from_test"}
    scored = {result["cell"]["method"]["name"]: result["evaluations"][0]["total"] for result in results}
    # The largest support that is stored has 16 images of each of 8 classes.
    assert scored == {"zero_shot": 600, "linear_probe": 600 - 16 * 8}
    page_of_report = (tmp_path / "runs" / "reports" / "grid" / "index.html").read_text()
    assert "few-shot from the test split" in page_of_report
