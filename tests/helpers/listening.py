"""What the processes of this machine listen on."""

import psutil

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def listening(root: psutil.Process) -> dict[str, set[str]]:
    """Return, by name, the addresses on which each process of a tree listens; processes without any are left out."""
    found: dict[str, set[str]] = {}
    for process in (root, *root.children(recursive=True)):
        try:
            name, sockets = process.name(), process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        addresses = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
        if addresses:
            found.setdefault(name, set()).update(addresses)
    return found
