"""The method in docs/adding-a-method.md runs."""

import re
import textwrap
from pathlib import Path

from tests.conftest import GiveDatabase
from tests.helpers.warm_process import run_forked

ROOT = Path(__file__).resolve().parents[2]


def test_the_method_of_the_page_runs(tmp_path: Path, give_database: GiveDatabase) -> None:
    """Runs in a process of its own, because it registers the method."""
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    page = (ROOT / "docs" / "adding-a-method.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "prototype.py").write_text(code.group(1))
    (tmp_path / "grid.yaml").write_text(
        textwrap.dedent(
            """
            title: A new method
            fine_tuning: {epochs: 1, batch_size: 32, learning_rate: 5.0e-4, warmup_steps: 5}
            blocks:
              - track: fewshot
                backbones: [tiny-clip]
                datasets: [glyph-inks]
                sources: leave_one_out
                shots: [1]
                seeds: [1]
                methods: [zero_shot, prototype]
            """
        )
    )
    script = "import bolt.methods, prototype; from orchestrator.__main__ import main; main()"
    done = run_forked(["grid", "grid.yaml", "--local", "--store", "runs"], script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs" / "results").glob("*prototype*.json"))) == 1
    assert "Prototypes" in done.stdout
