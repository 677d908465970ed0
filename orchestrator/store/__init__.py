"""The store: artifacts, results and failures under one root, a folder or any fsspec URL. Start at ``store.py``.

Layout::

    <kind>/<readable-name>--<8hex>/manifest.json       written last: an artifact exists when its manifest does
    <kind>/<readable-name>--<8hex>/<attempt>/<file>    the files that the manifest names, from the attempt that finished
    <kind>/<readable-name>--<8hex>/unfinished.*        the state of a training that is running (snapshots.py)
    results/<cell id>.json                             one finished cell, written last
    results/<cell id>.npz                              its predictions on the test images (predictions.py)
    adapters/<cell id>/                                what the cell trained, if it is small (:mod:`bolt.model.saving`)
    failures/<cell id or artifact>.json                a cell or artifact that failed; never read as a result
    logs/  reports/<grid>/  mlflow/  status/  locks/

Every build has its own attempt folder. So a crash never leaves an artifact that looks complete, and two builders of the
same artifact cannot mix their files.
"""

from orchestrator.store.artifact import Artifact, CorruptArtifact
from orchestrator.store.building import STALE_ATTEMPT_SECONDS, Builder
from orchestrator.store.store import Store

__all__ = ["STALE_ATTEMPT_SECONDS", "Artifact", "Builder", "CorruptArtifact", "Store"]
