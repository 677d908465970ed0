"""Start a Ray instance of this process's own, or join a running one; what is awkward about either is here."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.execution.autoscaler import Growth, growth_here
from orchestrator.util.errors import UserError, one_line
from orchestrator.util.interrupt import exit_immediately
from orchestrator.util.scratch import ScratchFolder

HANDSHAKE_SECONDS = 60.0

_WRONG_TOKEN = b"InvalidAuthToken"
"""What Ray's native code writes, again and again, when a token is missing or another; its exception does not say it."""

DRIVER_VARIABLE = "BOLT_DRIVER_HOST"
"""Environment variable by which the workers of a joined cluster know the driver's machine."""

HEAD = "node:__internal_head__"
"""A resource that every cluster's head has, and no other node."""

_LONGEST_SCRATCH = 40
"""Ray's sockets lie about 65 characters below its folder, and a socket's path may have 107."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative store paths mean the same in a worker as in the driver
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # work that asked for no GPU sees none
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}


def start(cpus: int | None, gpus: int | None, worker_env: Mapping[str, str]) -> ScratchFolder:
    """Start a local instance; returns its folder."""
    import ray
    from ray._private import ray_constants

    root = str(Path(__file__).resolve().parents[2])
    # Workers import this project from where this process did, installed or not.
    search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    scratch = _scratch()
    # Ray takes the loopback interface by itself only where this is false; there is no argument for it.
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with interrupt_later(), environment({**worker_env, "PYTHONPATH": search}):
            ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(scratch.path),
            )
    except BaseException:
        ray.shutdown()
        scratch.remove()
        raise
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = True
    scratch.path.chmod(0o700)  # Ray opens it to everybody, and workers' logs and sockets are in it
    return scratch


def locate(address: str) -> str:
    """Where ``auto`` or ``host:port`` is. Raises ``UserError``, within seconds, where nobody listens."""
    if address == "auto":
        from ray._private.services import canonicalize_bootstrap_address

        found: str | None
        try:
            found = canonicalize_bootstrap_address("auto")
        except ConnectionError:
            found = None
        if not found:
            raise _cannot_join(address, "")
    else:
        found = address
    if "://" in found:
        return found
    host, separator, port = found.rpartition(":")
    if not separator or not port.isdigit():
        hint = "give 'auto' or HOST:PORT"
        raise UserError(f"{address!r} is not the address of a Ray cluster", where="--address", hint=hint)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise _cannot_join(found, str(error)) from None
    return found


def join(address: str, worker_env: Mapping[str, str]) -> None:
    """Join the running instance at ``address``. Raises ``UserError`` when it turns this process away."""
    import ray

    with tempfile.TemporaryFile() as said:
        try:
            with interrupt_later(), _standard_error_to(said.fileno()):
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": {**ENVIRONMENT, DRIVER_VARIABLE: socket.gethostname(), **worker_env}},
                )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            said.seek(0)
            if _WRONG_TOKEN in said.read():
                raise _wrong_token(address) from None
            raise _cannot_join(address, one_line(error)) from error
        except BaseException:
            ray.shutdown()
            raise


@contextlib.contextmanager
def _standard_error_to(file: int) -> Iterator[None]:
    """Send what this process writes to its standard error into a file: Ray's native code knows no other setting."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def use_token() -> None:
    """Use the token this machine has.

    A driver that joins by an explicit address never turns Ray's token authentication on by itself, and is then
    turned away by a cluster that wants it.
    """
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if "RAY_AUTH_MODE" not in os.environ and ("RAY_AUTH_TOKEN" in os.environ or token.is_file()):
        os.environ["RAY_AUTH_MODE"] = "token"
        if "ray" in sys.modules:
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")  # it was read when ray was imported


def shake_hands(address: str) -> Growth:
    """See that a worker can start and answer, and return what it says the cluster may grow to.

    It runs on the head, where that is known, and asks for no CPU, so that a busy cluster can give it.

    Raises :class:`UserError`: a cluster without token authentication lets a driver that has it connect, and then
    cannot reach it, so that every worker is lost before it starts.
    """
    import ray
    from ray.exceptions import RayError

    worker = ray.remote(num_cpus=0, resources={HEAD: 0.001})(_Hand).remote()
    try:
        growth: Growth = ray.get(worker.shake.remote(), timeout=HANDSHAKE_SECONDS)
        return growth
    except (RayError, TimeoutError) as error:
        hint = "are the project and its Python the same on every node?"
        if os.environ.get("RAY_AUTH_MODE") == "token":
            hint += " if the cluster runs without token authentication, set RAY_AUTH_MODE=disabled here, too"
        raise UserError(
            f"the Ray cluster answers, but no worker of it does ({one_line(error, 160)})",
            where=f"--address {address}",
            hint=hint,
        ) from error
    finally:
        ray.kill(worker)


class _Hand:
    def shake(self) -> Growth:
        import ray

        return growth_here(ray.get_runtime_context().gcs_address)


def _wrong_token(address: str) -> UserError:
    has = "another one is" if os.environ.get("RAY_AUTH_MODE") == "token" else "none is"
    return UserError(
        f"the Ray cluster asks for its token, and {has} here",
        where=f"--address {address}",
        hint="copy ~/.ray/auth_token from the cluster's head to this machine (it opens the cluster: mode 0600)",
    )


def _cannot_join(address: str, why: str) -> UserError:
    if address == "auto":
        return UserError(
            "no running Ray cluster was found on this machine",
            where="--address auto",
            hint="start one with `ray start --head`, or leave the option out for a local instance",
        )
    hint = "is it running (`ray status`), is the port open, is ~/.ray/auth_token the cluster's?"
    return UserError(f"no Ray cluster answers ({why})", where=f"--address {address}", hint=hint)


@contextlib.contextmanager
def interrupt_later() -> Iterator[None]:
    """Keep the first Ctrl-C until the end of the block; a second one interrupts at once.

    Ray does not survive being interrupted while it starts or ends: processes stay behind, or this one crashes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, on_term = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    if before is exit_immediately:  # one was heard already; the next must not wait
        yield
        return
    pending = False

    def remember(number: int, frame: object) -> None:
        nonlocal pending
        pending = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, on_term)  # Ray has put its own there
    if pending:
        signal.raise_signal(signal.SIGINT)  # to whom it was meant for, by default a KeyboardInterrupt


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for this process and those started meanwhile; put them back after."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _scratch() -> ScratchFolder:
    base = tempfile.gettempdir()
    return ScratchFolder("ray", Path(base if len(base) < _LONGEST_SCRATCH - 17 else "/tmp"))


def log_folder() -> Path:
    import ray

    node = ray._private.worker._global_node
    return Path(node.get_session_dir_path(), "logs") if node is not None else Path()
