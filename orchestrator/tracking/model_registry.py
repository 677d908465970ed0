"""Registers a saved model in MLflow's model registry, under its cell's run.

The registered model is complete: the merged image tower with the classifier, the code that serves them
(:mod:`orchestrator.tracking.serving`), and the package ``bolt``, which this code needs. Nothing is pickled.
"""

import base64
import contextlib
import shutil
import tempfile
import warnings
from importlib import metadata
from pathlib import Path

import bolt
from bolt.model.saving import INDEX
from orchestrator.tracking.client import attach_folder, open_client
from orchestrator.tracking.location import TrackingLocation
from orchestrator.tracking.runs import KEY
from orchestrator.util.identity import file_digest

SERVED_PACKAGES = ("mlflow", "numpy", "pandas", "pillow", "safetensors", "torch", "torchvision")
"""The packages that a serving environment needs in addition to ``bolt``."""


def register_model(location: TrackingLocation, cell_id: str, folder: Path, name: str, example: bytes) -> int:
    """Register a saved model as the next version of ``name``, and return the version.

    Args:
        cell_id: the model is attached to the newest finished run of this cell.
        folder: a model in the form ``state_dict``.
        example: the bytes of an image file, for MLflow's input example.

    Raises ``LookupError`` if the tracking store has no finished run of the cell.
    """
    client = open_client(location.uri)
    experiments = [found.experiment_id for found in client.search_experiments()]
    runs = client.search_runs(experiments, filter_string=f"tags.{KEY} = '{cell_id}'", max_results=10)
    run = next((run.info for run in runs if run.info.status == "FINISHED"), None)  # the newest comes first
    if run is None:
        raise LookupError(f"no finished run of {cell_id} is tracked")
    from mlflow.exceptions import MlflowException

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="bolt-") as scratch:
        warnings.simplefilter("ignore")  # MLflow warns about its own type hints
        # The checksum in the name keeps a later version from overwriting an earlier one.
        path = f"model-{file_digest(folder / INDEX)[:8]}"
        attach_folder(client, run, _saved(Path(scratch), folder, example), path, location.artifacts)
        with contextlib.suppress(MlflowException):  # the name exists already
            client.create_registered_model(name)
        source = f"{run.artifact_uri}/{path}"
        version = client.create_model_version(name, source=source, run_id=run.run_id, tags={"cell": cell_id})
    return int(version.version)


def _saved(scratch: Path, folder: Path, example: bytes) -> Path:
    """Write the model in MLflow's format, and return its folder."""
    import mlflow.pyfunc
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, ParamSchema, ParamSpec, Schema

    signature = ModelSignature(
        inputs=Schema([ColSpec("string", "image")]),
        outputs=Schema([ColSpec("string", "label"), ColSpec("double", "score")]),
        params=ParamSchema([ParamSpec("all_scores", "boolean", False)]),
    )
    package = scratch / "code" / "bolt"
    shutil.copytree(Path(bolt.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    mlflow.pyfunc.save_model(
        path=str(scratch / "model"),
        python_model=str(Path(__file__).with_name("serving.py")),
        artifacts={"model": str(folder)},
        code_paths=[str(package)],  # the server needs no installation of this project
        signature=signature,
        input_example=pd.DataFrame({"image": [base64.b64encode(example).decode()]}),
        pip_requirements=[f"{name}=={metadata.version(name)}" for name in SERVED_PACKAGES],
    )
    return scratch / "model"
