"""``python -m orchestrator``: runs the command line; a user's error ends with exit code 2 and no traceback."""

from __future__ import annotations

import errno
import os
import sys

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
"""A disk that is full or not to be written to: the user's to mend, so no traceback."""


def main() -> None:
    """Entry point of the ``orchestrator`` command."""
    from orchestrator.cli.app import app
    from orchestrator.execution.health import ClusterLost
    from orchestrator.util.errors import UserError

    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if isinstance(error, ClusterLost):
            os._exit(2)  # Ray's own threads can wait for ever for a cluster that is gone
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        print(f"error: {error}", file=sys.stderr)
        print(
            "  the store cannot be written to; what has finished is kept. Mend that and run it again.", file=sys.stderr
        )
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nstopped; what has finished is kept. The same command goes on from here.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
