"""Which failures are the cell's own, and how a remote store that is away is retried."""

from contextlib import nullcontext

import pytest

from orchestrator.store.errors import StoreUnavailable, is_store_error, retry_store


def test_a_full_disk_or_an_unavailable_store_is_a_failure_of_the_store() -> None:
    full = OSError(28, "No space left on device")
    wrapped = ValueError("cannot save")
    wrapped.__cause__ = full
    assert all(map(is_store_error, (full, wrapped, StoreUnavailable("away"))))
    assert not any(map(is_store_error, (ValueError("full"), FileNotFoundError("x"), MemoryError())))


@pytest.mark.parametrize(
    ("local", "errno", "attempts"),
    [(False, None, 3), (True, None, 1), (False, 28, 1)],
    ids=["a server", "waiting repairs no disk", "a full disk"],
)
def test_only_a_remote_store_is_retried(
    local: bool, errno: int | None, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.errors.PAUSES", (0.0, 0.0))
    tried = []

    def read() -> str:
        tried.append(1)
        if len(tried) < 3:
            error = StoreUnavailable("the server does not answer")
            error.errno = errno
            raise error
        return "read"

    with nullcontext() if attempts == 3 else pytest.raises(StoreUnavailable):
        assert retry_store(local, read) == "read"
    assert len(tried) == attempts
