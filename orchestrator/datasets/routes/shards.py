"""Find the files of a Hugging Face repository that hold a part."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from orchestrator.catalog.routes import HuggingFaceRoute, PartName
from orchestrator.util.errors import UserError

_SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)")


def shards_of(paths: Iterable[str], route: HuggingFaceRoute, part: PartName) -> list[str]:
    """The parquet files of one part among a repository's ``paths``, in order.

    A split's files are ``data/train-00000-of-00004.parquet`` or ``train.parquet``, with the configuration as a folder
    above where there are several, and ``<config>/train/0000.parquet`` on the branch that Hugging Face converts itself.
    A route's ``files`` overrules this.

    Raises:
        UserError: there is none, or a numbered shard is missing.
    """
    given = route.files.get(part)
    split = route.splits[part]
    stem = rf"(.*/)?{re.escape(split)}(-\d+-of-\d+(-[0-9a-f]+)?|/\d+)?\.parquet"
    found = sorted(
        path
        for path in paths
        if (fnmatchcase(path, given) if given else re.fullmatch(stem, path) and _in_config(path, route.config))
    )
    if not found:
        raise UserError(f"there is no parquet file of the split {split!r}" + (f" ({given})" if given else ""))
    counted = [match for match in map(_SHARD.search, found) if match]
    if counted:
        there = {int(match["number"]) for match in counted}
        absent = sorted(set(range(max(int(match["count"]) for match in counted))) - there)
        if absent:
            raise UserError(
                f"shard {absent[0]} of the split {split!r} is missing ({len(found)} of {counted[0]['count']} are there)"
            )
    return found


def _in_config(path: str, config: str | None) -> bool:
    """Whether a file belongs to the configuration: it is in a folder of that name, or no configuration is given."""
    return config is None or config in path.split("/")[:-1]
