"""The code of a registered model: images in, labels and scores out. MLflow stores a copy of this file and runs it.

In MLflow's terms this is "models from code": MLflow executes the file when it loads the model, so nothing is pickled.
The file needs only one package of this project, ``bolt``, which is stored with the model.

Input: a table with a column ``image`` of image files (JPEG, PNG, ...) in base64. File names are refused, because the
server would read any file that a client names. Output: ``label`` and ``score`` per row and, with the parameter
``all_scores``, the probability of every class.
"""

import base64
import binascii
import io
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel, PythonModelContext
from PIL import Image

COLUMN = "image"
ALL_SCORES = "all_scores"


class BadImage(ValueError):
    """A row of the input is not an image."""


class ImageClassifier(PythonModel):  # type: ignore[misc]
    """A saved model with MLflow's prediction interface."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model from its registered artifact."""
        from bolt.model.loading import load_model

        self._model = load_model(context.artifacts["model"])

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return a row of ``label`` and ``score`` for each image. Raises ``BadImage``, which names the row."""
        if COLUMN not in model_input.columns:
            raise BadImage(f"the input has no column {COLUMN!r} of image files in base64")
        images = [self._decode(text, row) for row, text in enumerate(model_input[COLUMN])]
        found = self._model.predict(images)
        table: dict[str, list[Any]] = {
            "label": [prediction.label for prediction in found],
            "score": [prediction.score for prediction in found],
        }
        if (params or {}).get(ALL_SCORES):
            table["scores"] = [dict(prediction.scores) for prediction in found]
        return pd.DataFrame(table)

    def _decode(self, text: Any, row: int) -> Image.Image:
        """Return the image of one row. Raises ``BadImage`` if the text is not an image file in base64."""
        from bolt.clip.image_files import UNREADABLE, open_image

        try:
            return open_image(io.BytesIO(base64.b64decode(text, validate=True)), self._model.about.reading)
        except (binascii.Error, TypeError, *UNREADABLE) as error:
            raise BadImage(f"row {row} is not an image file in base64: {error}") from None


mlflow.models.set_model(ImageClassifier())
