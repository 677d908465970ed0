"""Temporary folders: gone at the end, and gone after a kill once another is made."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from orchestrator.util.scratch import ScratchFolder

HOLD = """
import sys, time
from pathlib import Path
from orchestrator.util.scratch import ScratchFolder
scratch = ScratchFolder("test", Path(sys.argv[1]))
(scratch.path / "file").write_text("left")
print(scratch.path, flush=True)
time.sleep(600)
"""


def holder(base: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(base)], stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    with ScratchFolder("test", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    living, kept = holder(tmp_path)
    killed, left = holder(tmp_path)
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert left.is_dir()
        with ScratchFolder("test", tmp_path):
            assert not left.exists()
            assert (kept / "file").is_file()
        with ScratchFolder("other", tmp_path):
            assert kept.is_dir()
    finally:
        for process in (living, killed):
            process.kill()
            process.communicate()
