"""An experiment on a tracking store: found, made or brought back, also when several processes do so at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def open_experiment(client: MlflowClient, name: str, artifact_root: str | None, tags: Mapping[str, str]) -> str:
    """The id of the experiment called ``name``, which is there and has these ``tags`` afterwards.

    Args:
        artifact_root: folder or URL below which a new experiment keeps its artifacts; ``None`` leaves it to the store.

    Raises what MLflow raises, but not because another process was quicker to the same end.
    """
    found = client.get_experiment_by_name(name)
    if found is None:
        location = None if artifact_root is None else f"{artifact_root}/{name}"
        with _unless(lambda: client.get_experiment_by_name(name) is not None):
            client.create_experiment(name, artifact_location=location, tags=dict(tags))
        found = client.get_experiment_by_name(name)
        assert found is not None
    experiment_id: str = found.experiment_id
    if found.lifecycle_stage == "deleted":
        with _unless(lambda: client.get_experiment(experiment_id).lifecycle_stage == "active"):
            client.restore_experiment(experiment_id)
    set_tags(client, experiment_id, tags)
    return experiment_id


def set_tags(client: MlflowClient, experiment_id: str, tags: Mapping[str, str]) -> None:
    """Have the experiment say ``tags``; those it says already cost nothing, others of its own stay.

    Raises what MLflow raises, but not because another process was quicker to the same end.
    """
    there = client.get_experiment(experiment_id).tags
    for tag in tags:
        if there.get(tag) != tags[tag]:
            _set_tag(client, experiment_id, tag, tags[tag])


def _set_tag(client: MlflowClient, experiment_id: str, tag: str, value: str) -> None:
    with _unless(lambda: client.get_experiment(experiment_id).tags.get(tag) == value):
        client.set_experiment_tag(experiment_id, tag, value)


@contextlib.contextmanager
def _unless(done: Callable[[], bool]) -> Iterator[None]:
    """Let an error pass where what was tried is done by somebody else.

    MLflow looks before it writes, outside of a transaction, and so refuses the second of two who do the same at once.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException:
        if not done():
            raise
