"""``python -m orchestrator``: run the command line. A user's error ends with exit code 2 and without a traceback."""

import errno
import gc
import os
import sys

from bolt.util.start import prepare_process

DISK_ERRORS = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
    errno.ELOOP, errno.EFBIG, errno.EIO, errno.ESTALE,
})  # fmt: skip
"""Errors of a disk or of a file's path, which the user can fix. They are shown without a traceback."""


def start() -> None:
    """Prepare this process, and run the ``orchestrator`` command."""
    prepare_process()
    main()


def main() -> None:
    """Run the ``orchestrator`` command."""
    # Python searches for unreachable cycles after every 700 new objects. A plan of 44,516 cells makes millions of
    # objects that stay, and the searches took 0.5 s of its 5.5 s.
    gc.set_threshold(100_000, 20, 20)
    from bolt.util.outside import BrokenPackage
    from orchestrator.cli.app import app
    from orchestrator.execution.health import ClusterLost
    from orchestrator.util.console import printable
    from orchestrator.util.errors import UserError
    from orchestrator.util.interrupt import EXIT_CODE, STOPPED

    try:
        _check_arguments()
        app()
    except (UserError, BrokenPackage) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        if isinstance(error, ClusterLost):
            os._exit(2)  # unlike sys.exit, does not wait for Ray's threads: they can wait forever for the lost cluster
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        what = f"{printable(str(error.filename))} cannot be used" if error.filename else "a file cannot be used"
        hint = "finished work is kept. Correct the problem and run the command again."
        print(f"error: {what}: {error.strerror}\n  {hint}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        sys.exit(EXIT_CODE)
    finally:
        # While Python exits, it looks for unreachable cycles among all objects that are not frozen. This takes a second
        # if PyTorch and MLflow are loaded. If Triton is loaded, nothing is frozen, because Triton's binding would print
        # a page about leaks of frozen objects.
        if "triton" not in sys.modules:
            gc.freeze()


def _check_arguments() -> None:
    """Raise ``UserError`` for an argument that is not UTF-8, because it cannot be written into a file.

    Arguments of ``predict`` are not checked, because it labels files of any name.
    """
    from orchestrator.util.errors import UserError

    foreign = next((word for word in sys.argv[1:] if any("\ud800" <= letter <= "\udfff" for letter in word)), None)
    if foreign is not None and sys.argv[1] != "predict":
        raise UserError(f"the name {foreign!a} is not UTF-8", hint="rename the file or folder")


if __name__ == "__main__":
    start()
