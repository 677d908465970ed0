"""Connecting to Ray and leaving it: local instances, clusters that are not there, and clusters that are lost."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version as ray_version
from pathlib import Path

import pytest

from orchestrator.execution.cluster import connect
from orchestrator.execution.join import VERSIONS
from orchestrator.util.errors import UserError
from tests.helpers.waiting import TIMEOUT

pytestmark = pytest.mark.ray
Scripts = dict[str, Future[subprocess.CompletedProcess[str]]]


def run_script(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process without Ray's and this test's own variables."""
    own = ("OMP_NUM_THREADS", "PYTHONPATH")
    environment = {name: text for name, text in os.environ.items() if name not in own and name[:8] != "RAY_AUTH"}
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env={**environment, **variables})


def run_below_uv(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, as the child of a process that Ray takes for ``uv run``."""
    (folder / "run").write_text("import subprocess, sys; subprocess.call(sys.argv[1:])")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "HOME": "/dev/null"}
    command, python = ["uv", "run", sys.executable, "-c", script], sys.executable
    return subprocess.run(
        command, executable=python, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with the token of another cluster."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("a token " * 6)
    return home


@pytest.fixture(scope="module")
def scripts(folder: Path) -> Iterator[Scripts]:
    """Scripts that run three at a time, because each waits half of its time for Ray to start and to end."""
    proxy = {"RAY_grpc_enable_http_proxy": "1", "grpc_proxy": "http://127.0.0.1:9"}  # Regression: Ray never started
    with ThreadPoolExecutor(3) as pool:
        yield {
            STARTS_AFTER_A_TRY_TO_JOIN: pool.submit(
                run_script, STARTS_AFTER_A_TRY_TO_JOIN, HOME=str(folder), STARTS="2", **proxy
            ),
            IN_A_WORKER: pool.submit(run_below_uv, IN_A_WORKER, folder),
            HAS_THREADS_AND_GARBAGE: pool.submit(run_script, HAS_THREADS_AND_GARBAGE),
            WITHOUT_PRIVATE_MODULES: pool.submit(run_script, WITHOUT_PRIVATE_MODULES),
            STOPPED_WHILE_RAY_ENDS_SLOWLY: pool.submit(run_script, STOPPED_WHILE_RAY_ENDS_SLOWLY),
            "loses its raylet": pool.submit(run_script, LOSES_A_PROCESS, "/raylet"),
            "loses its head": pool.submit(run_script, LOSES_A_PROCESS, "/gcs_server", "stop"),
        }


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_joining_a_cluster_that_is_not_there_is_a_user_error(address: str) -> None:
    with pytest.raises(UserError, match="--address"):
        connect(address).__enter__()


STOPPED_WHILE_RAY_ENDS_SLOWLY = """
import sys, time
from orchestrator.execution import cluster
cluster.SHUTDOWN_SECONDS = 1.0
class SlowEnd:
    def __init__(self, native):
        self.native = native
    def __getattr__(self, name):
        return getattr(self.native, name)
    def shutdown_driver(self):
        self.native.shutdown_driver()
        time.sleep(1.5)  # the native part is gone, and Ray's Python part does not know it yet
def work():
    import ray
    ray._private.worker.global_worker.core_worker = SlowEnd(ray._private.worker.global_worker.core_worker)
    running = [ray.remote(lambda: time.sleep(9)).remote()]
    raise KeyboardInterrupt
try:
    with cluster.connect(cpus=1):
        work()
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_slow_end_of_ray_does_not_change_the_exit_code(scripts: Scripts) -> None:
    """The stopped work's frames hold references into Ray. Freeing one while Ray ended gave exit code 1."""
    done = scripts[STOPPED_WHILE_RAY_ENDS_SLOWLY].result()
    assert done.returncode == 130, done.stdout + done.stderr


def test_rays_own_message_about_another_version_names_both() -> None:
    from ray._private.utils import check_version_info

    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": "2.49.2", "python_version": "3.10.1"}, "here")
    (theirs, own) = VERSIONS.findall(str(caught.value))
    assert theirs == ("2.49.2", "3.10.1")
    assert own == (ray_version("ray"), platform.python_version())


STARTS_AFTER_A_TRY_TO_JOIN = """
import os
from ray._raylet import get_authentication_mode
get_authentication_mode()  # as a notebook that has used Ray: the mode is read once
from orchestrator.execution.cluster import connect
from orchestrator.util.errors import UserError
try:
    connect("127.0.0.1:1").__enter__()
except UserError:
    pass
for time in range(int(os.environ["STARTS"])):
    with connect(cpus=1):
        import ray
        print(ray.get(ray.remote(lambda: "answered").remote()))
"""


def test_neither_a_token_of_another_cluster_nor_a_proxy_closes_a_local_instance(scripts: Scripts) -> None:
    done = scripts[STARTS_AFTER_A_TRY_TO_JOIN].result()
    assert done.stdout.split() == ["answered"] * 2, done.stderr


IN_A_WORKER = """
import os
from orchestrator.execution.cluster import connect
with connect(cpus=1):
    import ray
    print(ray.get(ray.remote(lambda: os.getcwd()).remote()))
"""


def test_neither_uv_run_nor_a_home_that_cannot_be_written_closes_a_local_instance(
    scripts: Scripts, folder: Path
) -> None:
    """Ray once got a copy of the working folder, and refused one of more than 512 MiB, such as with photographs."""
    done = scripts[IN_A_WORKER].result()
    assert done.stdout.split() == [str(folder)], done.stderr


LOSES_A_PROCESS = """
import contextlib, os, sys, tempfile
from pathlib import Path
from orchestrator.execution.cluster import connect
from orchestrator.execution.health import ClusterLost
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from tests.helpers import cells as samples

def kill(event):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            program = (stat.parent / "cmdline").read_bytes().split(b"\\0")[0]
            if parent == os.getpid() and program.endswith(sys.argv[1].encode()):
                os.kill(int(stat.parent.name), 9)
    if len(sys.argv) > 2:
        raise KeyboardInterrupt

with connect(None, cpus=1), tempfile.TemporaryDirectory() as folder:
    from orchestrator.execution.tune.driver import run_cells
    try:
        run_cells([samples.cell()], RunSettings(folder), request=lambda cell: Resources(), max_attempts=1,
                  on_event=kill, runner="tests.helpers.cells:sleep_long")
    except ClusterLost as error:
        print("lost:", error)
    except KeyboardInterrupt:
        print("stopped")
sys.stdout.flush()
os._exit(0)  # as the command line leaves a lost cluster
"""


@pytest.mark.parametrize(("lost", "said"), [("loses its raylet", "raylet has ended"), ("loses its head", "stopped")])
def test_the_driver_ends_when_its_cluster_dies(lost: str, said: str, scripts: Scripts) -> None:
    """With ``stop``, a signal to all processes also stops the driver, which Ray once ended after a minute."""
    done = scripts[lost].result()
    assert said in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr


def test_a_local_instance_that_cannot_start_is_a_user_error() -> None:
    done = run_script("from orchestrator.execution.cluster import connect; connect(cpus=-1).__enter__()")
    assert "UserError: Ray could not start on this machine: " in done.stderr


HAS_THREADS_AND_GARBAGE = """
import os, signal, threading
from orchestrator.catalog import load_catalog
from orchestrator.core.settings import RunSettings
from orchestrator.execution.backend import ray_backend
from orchestrator.execution.task_graph import GraphTask
from orchestrator.planning.packing import Packing
from orchestrator.util.machine import usable_processors
from tests.helpers import cells as samples

threads = usable_processors() + 1
connection = ray_backend(RunSettings("", threads=threads), None, Packing(load_catalog()), 0, samples.cell(), print)
backend = connection.__enter__()
check = f"import os; assert os.environ['OMP_NUM_THREADS'] == '{threads}'"
*_, end = backend.run_graph({"check": GraphTask(exec, (check,))})
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, end.kind)

import ray
print(ray.cluster_resources()["CPU"] - threads)

class Cycle:
    \"\"\"A reference cycle that holds an object reference of Ray, as Tune leaves them.\"\"\"

    def __init__(self, held):
        self.held, self.me = held, self

one = ray.put(1)
cycles = [Cycle(ray.ObjectRef(one.binary())) for _ in range(100_000)]
over = threading.Event()

def work():
    while not over.is_set():
        cycles.pop()
        [[] for _ in range(1000)]  # enough for the collector to run

thread = threading.Thread(target=work)
thread.start()
connection.__exit__(None, None, None)
over.set()
thread.join()
print(os.getenv("OMP_NUM_THREADS"), os.getenv("PYTHONPATH"))
"""


def test_workers_get_their_threads_and_garbage_does_not_end_the_driver_at_rays_end(scripts: Scripts) -> None:
    """More threads than processors once made a grid wait for ever. The garbage collector once ended the driver.

    Another thread's work can start the collector at the moment when Ray ends.
    """
    done = scripts[HAS_THREADS_AND_GARBAGE].result()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "finished", "0.0", "None", "None"], done.stderr


WITHOUT_PRIVATE_MODULES = """
import builtins, warnings
warnings.simplefilter("error")
found = builtins.__import__

def without(name, globals=None, locals=None, fromlist=(), level=0):
    if name.startswith("ray._private") and (globals or {}).get("__name__", "").startswith("orchestrator"):
        raise ImportError(name)
    return found(name, globals, locals, fromlist, level)

builtins.__import__ = without
from orchestrator.execution.cluster import connect
from orchestrator.execution.health import check_alive
with connect(None, cpus=1):
    import ray
    check_alive()
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    assert ray.get(ray.remote(lambda: 3).remote()) == 3
print("ended")
"""


def test_an_instance_starts_on_loopback_and_ends_without_rays_private_modules(scripts: Scripts) -> None:
    done = scripts[WITHOUT_PRIVATE_MODULES].result()
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ended"]), done.stderr[-2000:]
