"""Tensors on disk: whole and readable, or an error with the system's number."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bolt.clip.tensor_files import save_tensors
from tests.helpers.warm_process import run_forked

LIMITED = """
import resource, signal, sys
from pathlib import Path
import torch
from bolt.clip.tensor_files import save_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
try:
    save_tensors({"a": torch.zeros(100_000)}, Path(sys.argv[1]))
except OSError as error:
    print(error.errno, error.filename)
"""


def test_what_is_written_reads_back_and_everybody_may_read_it(tmp_path: Path) -> None:
    save_tensors({"a": torch.arange(3.0)}, tmp_path / "a.safetensors", {"note": "x"})
    assert torch.equal(load_file(tmp_path / "a.safetensors")["a"], torch.arange(3.0))
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_an_error_of_the_system(tmp_path: Path) -> None:
    """safetensors raises an exception of its own, which code that handles a full disk would not catch."""
    path = tmp_path / "a.safetensors"
    done = run_forked([str(path)], LIMITED)
    assert done.stdout.split() == [str(errno.EFBIG), str(path)], done.stderr


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        save_tensors({"a": torch.zeros(1)}, tmp_path / "nowhere" / "a.safetensors")
    assert caught.value.errno == errno.ENOENT
