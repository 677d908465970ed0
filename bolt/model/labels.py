"""Labels many images for :mod:`bolt.model.command`: finds paths, makes rows, and writes the journal and the outputs.

Threads decode the images of the next batches while the tower computes, so only a few batches are in memory.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import shutil
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import IO, BinaryIO

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.image_files import UNREADABLE, open_named, read_as
from bolt.image_folders import iterate_images
from bolt.model.model import Model

BATCH = 64
BATCHES_AHEAD = 2


class CannotLabel(ValueError):
    """Images cannot be labelled because of an option, a path, the model or another process."""


@dataclass(frozen=True)
class Row:
    """The prediction for one image.

    Attributes:
        label, second_label: names of the most probable and the second most probable class. ``second_label`` is empty if
            the model has only one class.
        score: probability of ``label``.
        margin: probability of ``label`` minus that of ``second_label``.
        error: the reason why the file cannot be read, or empty. A row with a reason has no prediction.
        remarks: notes on the parts of the file that are not used, such as further frames.
    """

    path: str
    label: str = ""
    score: float = 0.0
    second_label: str = ""
    margin: float = 0.0
    error: str = ""
    remarks: Sequence[str] = ()

    def shown(self) -> Row:
        """Return the row with names that are safe to print on a terminal."""
        path, label, second_label = map(shown, (self.path, self.label, self.second_label))
        return replace(self, path=path, label=label, second_label=second_label)


def image_paths(given: Sequence[str], listed: BinaryIO, unused: Counter[str]) -> Iterator[str]:
    """Yield the given paths of files, and the paths of the images in the given folders.

    A path ``-`` stands for the lines of ``listed``, each the path of a file or folder. ``unused`` counts the files that
    :func:`bolt.image_folders.iterate_images` leaves out.
    """
    lines = (os.fsdecode(line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")) for line in listed)
    for path in chain.from_iterable(filter(None, lines) if path == "-" else [path] for path in given):
        if os.path.isdir(path):
            yield from map(str, iterate_images(Path(path), unused))
        else:
            yield path


def label_images(model: Model, paths: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each image, in order. Raises ``CannotLabel`` if the model gives NaN or infinite scores."""
    rest, waiting = iter(paths), deque[list[tuple[str, Future[tuple[Tensor, tuple[str, ...]]]]]]()
    pool = ThreadPoolExecutor(torch.get_num_threads())
    try:
        while batch := list(islice(rest, BATCH)):
            waiting.append([(path, pool.submit(_pixels, model, path)) for path in batch])
            if len(waiting) > BATCHES_AHEAD:
                yield from _rows(model, waiting.popleft())
        while waiting:
            yield from _rows(model, waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _pixels(model: Model, path: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return the pixels of an image file for the model, and remarks on what is not used."""
    if "\0" in path:
        raise OSError("it has a zero byte (UTF-16, or find -print0): list the paths in UTF-8, one per line")
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError("it is not a file")  # reading a pipe could wait forever
    image = open_named(path, model.about.reading)
    return model.pixels([image])[0], read_as(image).remarks


def _rows(model: Model, batch: list[tuple[str, Future[tuple[Tensor, tuple[str, ...]]]]]) -> list[Row]:
    pixels, rows = [], {}
    for path, future in batch:
        try:
            pixels.append((path, *future.result()))
        except UNREADABLE as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            rows[path] = Row(path, error=" ".join(reason.removeprefix(f"{path} ").split()))
    if pixels:
        logits_BC = model.logits(torch.stack([image for _, image, _ in pixels]))
        if not torch.isfinite(logits_BC).all():
            raise CannotLabel("the model gives NaN or infinite scores, so its weights are damaged")
        names = *model.about.class_names, ""
        padded_BC = F.pad(logits_BC, (0, int(len(names) == 2)), value=-torch.inf)  # a model of one class has no second
        classes_B2 = padded_BC.topk(2).indices  # of the logits: probabilities of 1 and 0 do not tell the second class
        scores_B2 = padded_BC.softmax(dim=-1).gather(1, classes_B2)
        for (path, _, remarks), scores, classes in zip(pixels, scores_B2.tolist(), classes_B2.tolist(), strict=True):
            margin = scores[0] - scores[1]
            rows[path] = Row(path, names[classes[0]], scores[0], names[classes[1]], margin, remarks=remarks)
    return [rows[path] for path, _ in batch]


class Journal:
    """The rows of a run, in a file that is kept until the output is complete.

    Raises ``CannotLabel`` if another process has opened the journal.

    Args:
        path: the journal's file.
        model: digest of the model; rows of another model are dropped.

    Attributes:
        count: number of rows.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._path, self._mark, self.count = path, json.dumps({"model": model}).encode() + b"\n", 0
        self._file = open(path, "a+b")  # noqa: SIM115  the lock holds as long as the file is open
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotLabel(f"another process is writing {shown(str(path))}") from None

    def resume(self, paths: Iterator[str]) -> Iterator[str]:
        """Return the paths that have no row in the journal yet.

        The rows are compared with ``paths`` in order. At the first row that is damaged or has another path, the journal
        drops this row and all later rows. A row also has the image's time stamp and size, because the image may have
        been replaced since.
        """
        self._file.seek(0)
        good, rest = 0, paths
        if self._file.readline() == self._mark:
            good = len(self._mark)
            for line in self._file:
                path = next(paths, "")
                if not line.startswith(_beginning(path)) or not line.endswith(b"}]\n"):
                    rest = chain(filter(None, [path]), paths)
                    break
                good, self.count = good + len(line), self.count + 1
        self._file.truncate(good)
        self._file.write(b"" if good else self._mark)
        return rest

    def write(self, row: Row) -> None:
        """Add a row. Raises ``OSError`` with the journal's path if the disk is full."""
        try:
            self._file.write(_beginning(row.path) + json.dumps(asdict(row)).encode() + b"]\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        self.count += 1

    def __iter__(self) -> Iterator[Row]:
        self._file.seek(len(self._mark))
        return (Row(**json.loads(line)[1]) for line in self._file)

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink()
        self._file.close()


def _beginning(path: str) -> bytes:
    """Return the first bytes of a journal's line: the image's path, time stamp and size."""
    state = os.stat(path) if os.path.exists(path) else None
    return b"[" + json.dumps([path, state and [state.st_mtime_ns, state.st_size]]).encode() + b", "


def write_table(rows: Iterable[Row], stream: IO[str], *, as_json: bool, threshold: float | None) -> None:
    """Write the rows that have no error as CSV or JSON lines. With a threshold, there is a column ``unsure``."""
    hidden = ("error", "remarks")
    readable = (asdict(row) for row in rows if not row.error)
    records = ({key: value for key, value in record.items() if key not in hidden} for record in readable)
    if threshold is not None:
        records = ({**record, "unsure": record["score"] < threshold} for record in records)
    if as_json:
        stream.writelines(json.dumps(record) + "\n" for record in records)
        return
    first = next(records)
    lines = SimpleNamespace(write=lambda line: stream.write(line.removesuffix("\r\n") + "\n"))
    writer = csv.DictWriter(lines, [*first], lineterminator="\r\n")  # so that Python 3.11 puts "\r" into quotes, too
    writer.writeheader()
    writer.writerows(chain([first], records))


def write_links(rows: Iterable[Row], folder: Path, class_names: Sequence[str], threshold: float | None) -> None:
    """Make a folder with links to the images, sorted by their predicted class.

    A link is in ``CLASS/`` or, if there is a threshold, in ``labelled/CLASS/`` or ``unsure/CLASS/``. Links of images
    with equal file names get numbers.
    """
    folder_of = {name: re.sub(r"[/\0]|^\.+|^$", "_", name)[:80] for name in class_names}
    if len(set(folder_of.values())) < len(folder_of):
        folder_of = {name: f"{plain}-{number}" for number, (name, plain) in enumerate(folder_of.items())}
    taken = Counter[Path]()
    for row in (row for row in rows if not row.error):
        kind = "" if threshold is None else "unsure" if row.score < threshold else "labelled"
        target = wanted = folder / kind / folder_of[row.label] / Path(row.path).name
        wanted.parent.mkdir(parents=True, exist_ok=True)
        while os.path.lexists(target):
            taken[wanted] += 1
            target = wanted.with_name(f"{wanted.stem}-{taken[wanted] + 1}{wanted.suffix}")
        target.symlink_to(os.path.abspath(row.path))


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path. At the end of the block it is renamed to ``target``; after an error it is removed."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
        raise


def shown(path: str) -> str:
    """Return a path for printing, with escapes for control characters and for bytes that are not UTF-8."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)
