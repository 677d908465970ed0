"""Artifacts that several tests need. A test run builds each of them once and copies it into the stores of its tests."""

import fcntl
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.artifacts.spec import ArtifactSpec, build
from orchestrator.core.settings import RunSettings
from orchestrator.store import Store


@dataclass(frozen=True)
class BuiltArtifacts:
    """A store of the test run, from which artifacts are copied. Several test processes may use it at once."""

    folder: Path

    def build(self, specs: Iterable[ArtifactSpec], settings: RunSettings) -> None:
        """Copy artifacts into the settings' store, after building those that no test has needed before.

        Args:
            specs: the artifacts in the order of a plan, so that inputs come before the artifacts that read them.
        """
        here = replace(settings, store_url=str(self.folder))
        for spec in specs:
            lock = self.folder / "locks" / f"{spec.address.replace('/', '.')}.test"
            lock.parent.mkdir(parents=True, exist_ok=True)
            with open(lock, "w") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)  # another process waits and then finds the artifact
                build(spec, here)
            if Store(settings.store_url).artifact(spec.address, spec.identity) is None:
                shutil.copytree(self.folder / spec.address, Path(settings.store_url, spec.address), dirs_exist_ok=True)
