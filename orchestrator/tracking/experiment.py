"""Finds, creates or restores an MLflow experiment, even when several processes do so at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def open_experiment(client: MlflowClient, name: str, artifact_root: str | None, tags: Mapping[str, str]) -> str:
    """The id of the active experiment called ``name``, created or restored where necessary, with ``tags`` set.

    A new one keeps its artifacts below the folder or URL ``artifact_root``; ``None`` leaves that to the store. Raises
    what MLflow raises, unless another process did the same in the meantime.
    """
    found = client.get_experiment_by_name(name)
    if found is None:
        location = None if artifact_root is None else f"{artifact_root}/{name}"
        with _ignoring_errors_if(lambda: client.get_experiment_by_name(name) is not None):
            client.create_experiment(name, artifact_location=location, tags=dict(tags))
        found = client.get_experiment_by_name(name)
        assert found is not None
    experiment_id: str = found.experiment_id
    if found.lifecycle_stage == "deleted":
        with _ignoring_errors_if(lambda: client.get_experiment(experiment_id).lifecycle_stage == "active"):
            client.restore_experiment(experiment_id)
    set_tags(client, experiment_id, tags)
    return experiment_id


def set_tags(client: MlflowClient, experiment_id: str, tags: Mapping[str, str]) -> None:
    """Set those tags of an experiment that are missing or differ; other tags stay.

    Raises as :func:`open_experiment`.
    """
    present = client.get_experiment(experiment_id).tags
    for tag, value in tags.items():
        if present.get(tag) != value:
            _set_tag(client, experiment_id, tag, value)


def _set_tag(client: MlflowClient, experiment_id: str, tag: str, value: str) -> None:
    with _ignoring_errors_if(lambda: client.get_experiment(experiment_id).tags.get(tag) == value):
        client.set_experiment_tag(experiment_id, tag, value)


@contextlib.contextmanager
def _ignoring_errors_if(done: Callable[[], bool]) -> Iterator[None]:
    """Ignore an error of the block if its goal is reached afterwards.

    MLflow checks before it writes, outside of a transaction. So of two processes that do the same at once, the second
    gets an error.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException:
        if not done():
            raise
