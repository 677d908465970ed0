"""Which failures are the cell's own, and how a remote store that is away is retried."""

import pytest

from orchestrator.store.errors import StoreUnavailable, is_store_error, retry_store


def test_a_full_disk_or_an_unavailable_store_is_a_failure_of_the_store() -> None:
    full = OSError(28, "No space left on device")
    wrapped = ValueError("cannot save")
    wrapped.__cause__ = full
    assert all(map(is_store_error, (full, wrapped, StoreUnavailable("away"))))
    assert not any(map(is_store_error, (ValueError("full"), FileNotFoundError("x"), MemoryError())))


def test_only_a_remote_store_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.errors.PAUSES", (0.0, 0.0))
    attempts = []

    def read() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise StoreUnavailable("the server does not answer")
        return "read"

    assert retry_store(False, read) == "read"
    attempts.clear()
    with pytest.raises(StoreUnavailable):
        retry_store(True, read)  # waiting does not repair a disk
    assert len(attempts) == 1


def test_a_remote_store_with_a_full_disk_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.errors.PAUSES", (0.0, 0.0))
    full = StoreUnavailable("the disk is full")
    full.errno = 28
    attempts = []

    def write() -> None:
        attempts.append(1)
        raise full

    with pytest.raises(StoreUnavailable):
        retry_store(False, write)
    assert len(attempts) == 1
