"""The store: addressed artifacts, results and failures under one root, on a disk or behind any fsspec URL.

Layout::

    <kind>/<readable-name>--<8hex>/manifest.json       an artifact counts as built when its manifest is there
    <kind>/<readable-name>--<8hex>/<attempt>/<file>    the files the manifest names, of the attempt that finished
    <kind>/<readable-name>--<8hex>/unfinished.*        how far its builder is, while there is one (snapshots.py)
    results/<cell id>.json                             one finished cell
    adapters/<cell id>/                                what it made, where that is small (:mod:`bolt.model.saving`)
    failures/<cell id or artifact>.json                one that could not be made; never served as a result
    logs/  reports/<grid>/  mlflow/  status/  locks/

Every builder writes into an attempt folder of its own and the manifest last, so a crash leaves no half-built
artifact behind that looks whole, and two builders of the same artifact cannot mix their files.
"""

from orchestrator.store.artifact import Artifact, CorruptArtifact
from orchestrator.store.building import STALE_ATTEMPT_SECONDS, Builder
from orchestrator.store.store import Store

__all__ = ["STALE_ATTEMPT_SECONDS", "Artifact", "Builder", "CorruptArtifact", "Store"]
