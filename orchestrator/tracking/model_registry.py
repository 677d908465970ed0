"""Registering a saved model in MLflow, under its cell's run.

What is registered is a whole model: the merged tower with its classifier, the code that serves it
(:mod:`orchestrator.tracking.serving`) and the package ``bolt`` that the code needs. Nothing is pickled.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import bolt
from bolt.model.saving import INDEX, file_digest
from orchestrator.tracking.client import attach, open_client
from orchestrator.tracking.runs import KEY

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SERVED_PACKAGES = ("mlflow", "numpy", "pandas", "pillow", "safetensors", "torch", "torchvision")
"""What a server needs beside ``bolt``."""


def register_model(
    uri: str, cell_id: str, folder: Path, name: str, example: bytes, destination: str | None = None
) -> int:
    """Register a saved model that needs nothing else, under a cell's run; returns the version.

    Args:
        uri: of the tracking store.
        folder: a model in the form ``state_dict``.
        example: an image file, which becomes the input example.
        destination: as in :func:`~orchestrator.tracking.client.attach`.

    Raises:
        LookupError: when no finished run of the cell is tracked there.
    """
    client = open_client(uri)
    run_id = _run_of(client, cell_id)
    from mlflow.exceptions import MlflowException

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="bolt-") as scratch:
        warnings.simplefilter("ignore")  # MLflow's, about type hints of its own
        # Named by what it is, so that a later version cannot overwrite what an earlier one serves.
        place = f"model-{file_digest(folder / INDEX)[:8]}"
        run = client.get_run(run_id).info
        attach(client, run, _saved(Path(scratch), folder, example), place, destination)
        with contextlib.suppress(MlflowException):  # it exists: this becomes its next version
            client.create_registered_model(name)
        source = f"{run.artifact_uri}/{place}"
        version = client.create_model_version(name, source=source, run_id=run_id, tags={"cell": cell_id})
    return int(version.version)


def _saved(scratch: Path, folder: Path, example: bytes) -> Path:
    """The whole model as MLflow stores it, in a folder."""
    import mlflow.pyfunc
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, ParamSchema, ParamSpec, Schema

    code = Path(__file__).with_name("serving.py")
    signature = ModelSignature(
        inputs=Schema([ColSpec("string", "image")]),
        outputs=Schema([ColSpec("string", "label"), ColSpec("double", "score")]),
        params=ParamSchema([ParamSpec("all_scores", "boolean", False)]),
    )
    package = scratch / "code" / "bolt"
    shutil.copytree(Path(bolt.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    mlflow.pyfunc.save_model(
        path=str(scratch / "model"),
        python_model=str(code),
        artifacts={"model": str(folder)},
        code_paths=[str(package)],  # so that a server needs nothing of this project installed
        signature=signature,
        input_example=pd.DataFrame({"image": [base64.b64encode(example).decode()]}),
        pip_requirements=[f"{name}=={metadata.version(name)}" for name in SERVED_PACKAGES],
    )
    return scratch / "model"


def _run_of(client: MlflowClient, cell_id: str) -> str:
    """The newest finished run of a cell, in any experiment. Raises ``LookupError``."""
    experiments = [found.experiment_id for found in client.search_experiments()]
    runs = client.search_runs(experiments, filter_string=f"tags.{KEY} = '{cell_id}'", max_results=10)
    finished = [run.info.run_id for run in runs if run.info.status == "FINISHED"]
    if not finished:
        raise LookupError(f"no finished run of {cell_id} is tracked")
    return str(finished[0])
