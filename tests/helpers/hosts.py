"""Several hosts on one machine: each has its own processes, network, name, ``/tmp``, home, ``/run`` and ``/dev/shm``.

A host is a set of Linux namespaces with an address of its own. All hosts of one :class:`Hosts` are connected to one
switch. A command that ends all processes of a kind (``ray stop``) ends those of its host only. A test can cut off one
host's network, or kill all processes of one host at once, as a power failure does. The disk outside the private folders
is the machine's, so the Python environment need not be copied.

Nothing is visible on the machine's own network. Nothing stays behind: namespaces, links and mounts live as long as the
first process of each host, and the kernel kills the first processes when the test's process ends in any way.

Needs root, and Debian's iproute2, openssh-server and util-linux; :func:`missing` says what a machine lacks.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import psutil

NETWORK = "10.77.0"
"""The beginning of the hosts' addresses. No other network sees the hosts', so all instances can use the same one."""
SHM_MIB = 256
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PRIVATE = {"/root": "home", "/tmp": "tmp"}
"""Private folders of a host, and their names in ``Host.folder``. ``/tmp`` is last, because it may hide that folder."""
_START = """
set -e
exec 3<{names}   # opened now, because the mounts below may hide its path
{binds}
mount -t tmpfs -o size={shm}m,mode=1777 shm /dev/shm
mount -t tmpfs run /run
mkdir -p /run/sshd /run/lock
mount --bind /proc/self/fd/3 /etc/hosts
hostname {name}
ip link set lo up
echo up
cat >/dev/null   # until the other end is closed, which happens when the parent process ends
"""
_SSHD = """
ListenAddress {address}
HostKey {etc}/host_key
AuthorizedKeysFile {etc}/authorized_keys
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
StrictModes no
UseDNS no
"""


def missing() -> str:
    """Return what this machine lacks to make hosts; empty if it lacks nothing."""
    if os.geteuid() != 0:
        return "making hosts needs root"
    programs = ("ip", "unshare", "nsenter", "sshd", "ssh", "ssh-keygen", "rsync", "mount")
    if lacking := [name for name in programs if shutil.which(name, path=PATH) is None]:
        return f"making hosts needs {', '.join(lacking)}"
    tried = subprocess.run(["unshare", "--net", "--pid", "--fork", "--mount", "--uts", "--ipc", "true"], check=False)
    return "" if tried.returncode == 0 else "this machine does not allow namespaces"


@dataclass
class Host:
    """One host.

    Attributes:
        name, address: under which other hosts reach this host.
        folder: a folder on the machine's disk; its ``tmp`` and ``home`` are the host's ``/tmp`` and ``/root``.
        pid: the host's first process, in the machine's numbering; 0 while the host is off.
    """

    name: str
    address: str
    folder: Path
    pid: int = 0
    _init: subprocess.Popen[str] | None = field(default=None, repr=False)


class Hosts:
    """A switch and its hosts; a context manager that ends all of them.

    Args:
        folder: holds the hosts' folders; it is not deleted.
        share: folders below ``/tmp`` or ``/root`` that every host sees under the same path, such as the store. The
            Python environment of this process is always shared.

    Attributes:
        key: private SSH key for root on every host.
    """

    def __init__(self, folder: Path, share: Sequence[Path] = ()) -> None:
        self.folder = folder.resolve()
        python = (Path(sys.prefix), Path(sys.base_prefix))
        self.share = tuple(dict.fromkeys(path.resolve() for path in (*python, *share)))
        self.key = self.folder / "key"
        self.hosts: dict[str, Host] = {}
        self._names = self.folder / "hosts"
        self._switch = Host("switch", f"{NETWORK}.254", self.folder / "switch")

    def __enter__(self) -> Self:
        if why := missing():
            raise RuntimeError(why)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.key.exists():
            _run_command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key))
        self._names.write_text("127.0.0.1 localhost\n")
        try:
            self._power_on(self._switch)
            self._at_switch("ip link add bridge type bridge")
            self._at_switch(f"ip address add {self._switch.address}/24 dev bridge")
            self._at_switch("ip link set bridge up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, name: str) -> Host:
        """Make a host and start its ``sshd``. A host that was killed starts again with its address and its disk."""
        host = self.hosts.get(name)
        if host is None:
            host = Host(name, f"{NETWORK}.{len(self.hosts) + 1}", self.folder / name)
            with self._names.open("a") as names:  # in place, because the file is mounted in other hosts
                names.write(f"{host.address} {name}\n")
        elif host.pid:
            raise ValueError(f"host {name} runs already")
        self._power_on(host)
        self.hosts[name] = host
        # The hardware address stays the same after a restart, because the other hosts remember it.
        card = f"02:00:00:00:00:{int(host.address.rpartition('.')[2]):02x}"
        with contextlib.suppress(RuntimeError):  # Linux removes the link of a killed host some time after its processes
            self._at_switch(f"ip link delete {_port(host)}")
        self._at_switch(f"ip link add {_port(host)} type veth peer name eth0 address {card} netns {host.pid}")
        self._at_switch(f"ip link set {_port(host)} master bridge up")
        # The route leads nowhere, but without it a host does not find its own address.
        for command in (
            f"ip address add {host.address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {self._switch.address}",
        ):
            _run_command(*_enter(host), *command.split())
        self._serve_ssh(host)
        return host

    def enter(self, name: str, env: Mapping[str, str] | None = None) -> list[str]:
        """Return the words that run the command after them in a host, in root's home."""
        return _enter(self._running(name), env)

    def run(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (a line for bash, or a list) in a host and return its output, errors included.

        Raises ``RuntimeError`` with the output if the command fails and ``check`` is true.
        """
        words = _words(command)
        done = subprocess.run(
            [*self.enter(name, env), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{name}: {shlex.join(words)} ended with {done.returncode}:\n{done.stdout}")
        return done

    def start(
        self, name: str, command: str | Sequence[str], *, env: Mapping[str, str] | None = None, output: IO[str]
    ) -> subprocess.Popen[str]:
        """Start a command in a host without waiting for it. Signals to the result do not reach the command."""
        return subprocess.Popen(
            [*self.enter(name, env), *_words(command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )

    def cut(self, name: str) -> None:
        """Cut a host off at the switch: its link stays up, but nothing is transmitted."""
        self._at_switch(f"ip link set {_port(self._running(name))} nomaster")

    def heal(self, name: str) -> None:
        """Connect a host that was cut off again."""
        self._at_switch(f"ip link set {_port(self._running(name))} master bridge")

    def kill(self, name: str) -> None:
        """Kill all processes of a host at once, as a power failure does. Its disk stays."""
        _power_off(self._running(name))

    def processes(self, name: str) -> dict[int, str]:
        """Return the process ids, in the machine's numbering, and the command lines of the processes in a host."""
        space, found = os.readlink(f"/proc/{self._running(name).pid}/ns/pid"), {}
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{process.pid}/ns/pid") == space:
                    found[process.pid] = " ".join(process.cmdline())
        return found

    def close(self) -> None:
        """Kill all hosts. Closing twice is harmless."""
        for host in (*self.hosts.values(), self._switch):
            _power_off(host)

    def _at_switch(self, command: str) -> None:
        """Run a command in the switch's network alone: in its process namespace, host's process ids are unknown."""
        _run_command("nsenter", f"--target={self._switch.pid}", "--net", *command.split())

    def _running(self, name: str) -> Host:
        host = self.hosts[name]
        if not host.pid:
            raise ValueError(f"host {name} is off")
        return host

    def _power_on(self, host: Host) -> None:
        binds = []
        for place, part in PRIVATE.items():
            own = host.folder / part
            own.mkdir(parents=True, exist_ok=True)
            for shared in self.share:
                if shared.is_relative_to(place):
                    seen = own / shared.relative_to(place)
                    seen.mkdir(parents=True, exist_ok=True)
                    binds.append(f"mount --bind {shlex.quote(str(shared))} {shlex.quote(str(seen))}")
        binds += [f"mount --rbind {shlex.quote(str(host.folder / part))} {place}" for place, part in PRIVATE.items()]
        script = host.folder / "start"
        names = shlex.quote(str(self._names))
        script.write_text(_START.format(binds="\n".join(binds), shm=SHM_MIB, names=names, name=host.name))
        spaces = ["--net", "--pid", "--fork", "--mount", "--uts", "--ipc", "--mount-proc", "--kill-child"]
        init = subprocess.Popen(
            ["unshare", *spaces, "bash", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env={"PATH": PATH},
        )  # fmt: skip
        if (line := init.stdout.readline()) != "up\n":
            init.kill()
            raise RuntimeError(f"host {host.name} does not start: {line}{init.stdout.read()}")
        host.pid = psutil.Process(init.pid).children()[0].pid
        host._init = init

    def _serve_ssh(self, host: Host) -> None:
        etc = host.folder / "etc"
        etc.mkdir(exist_ok=True)
        if not (etc / "host_key").exists():
            _run_command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(etc / "host_key"))
        shutil.copy(self.key.with_suffix(".pub"), etc / "authorized_keys")
        (etc / "sshd_config").write_text(_SSHD.format(address=host.address, etc="/run/etc"))
        # Through the host's own root folder, because the path above may be hidden in it.
        inside = Path(f"/proc/{host.pid}/root/run/etc")
        shutil.copytree(etc, inside)
        _run_command(*_enter(host), "/usr/sbin/sshd", "-f", "/run/etc/sshd_config", "-E", "/run/etc/log")


def _words(command: str | Sequence[str]) -> list[str]:
    return ["bash", "-c", command] if isinstance(command, str) else list(command)


def _port(host: Host) -> str:
    return f"port{host.address.rpartition('.')[2]}"


def _enter(host: Host, env: Mapping[str, str] | None = None) -> list[str]:
    given = {"HOME": "/root", "PATH": PATH, "LANG": "C.UTF-8", **(env or {})}
    # --chdir sets the working directory after the command has entered the host, as a login does.
    inside = ["env", "--ignore-environment", "--chdir=/root", *(f"{name}={value}" for name, value in given.items())]
    return ["nsenter", f"--target={host.pid}", *["--net", "--pid", "--mount", "--uts", "--ipc", "--root"], *inside]


def _power_off(host: Host) -> None:
    if host._init is None:
        return
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(host.pid or host._init.pid, signal.SIGKILL)
    host._init.wait()  # the kernel kills the other processes; unshare ends when all are gone
    for stream in (host._init.stdin, host._init.stdout):
        if stream is not None:
            stream.close()
    host.pid, host._init = 0, None


def _run_command(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}: {done.stdout}")
