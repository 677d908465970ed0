"""``python -m orchestrator``: run the command line. A user's error ends with exit code 2 and without a traceback."""

from __future__ import annotations

import errno
import gc
import os
import sys

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
"""A full or read-only disk. The user can fix that, so it is shown without a traceback."""


def main() -> None:
    """Entry point of the ``orchestrator`` command."""
    from bolt.outside import BrokenPackage
    from orchestrator.cli.app import app
    from orchestrator.execution.health import ClusterLost
    from orchestrator.util.console import printable
    from orchestrator.util.errors import UserError

    try:
        app()
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        if isinstance(error, ClusterLost):
            os._exit(2)  # Ray's threads can wait forever for a lost cluster
        sys.exit(2)
    except BrokenPackage as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        hint = "the store cannot be written to; finished work is kept. Fix that and run the command again."
        print(f"error: {error}\n  {hint}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nstopped; finished work is kept. The same command continues.", file=sys.stderr)
        sys.exit(130)
    finally:
        # With PyTorch and MLflow loaded, Python would look for unreachable cycles for a second while it exits. Triton's
        # binding prints a page about leaks when its objects are not collected.
        if "triton" not in sys.modules:
            gc.freeze()


if __name__ == "__main__":
    main()
