"""Translate errors of the Hugging Face hub into :class:`UserError`."""

from __future__ import annotations

from orchestrator.util.errors import UserError


def explain_hub_error(error: Exception, where: str) -> Exception:
    """The :class:`UserError` that explains an error of ``huggingface_hub``; any other error is returned unchanged."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return UserError("the repository is gated", where=where, hint="agree to its terms there, then: hf auth login")
    if isinstance(error, RevisionNotFoundError):
        return UserError("the repository has no such revision", where=where)
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        return UserError("there is no such repository, or it needs a token", where=where, hint="hf auth login")
    if isinstance(error, OfflineModeIsEnabled):
        return UserError("cannot be fetched: HF_HUB_OFFLINE is set", where=where, hint="unset it for this command")
    # When the network is down, huggingface_hub passes on the errors of the HTTP library it uses; versions differ in it.
    of_http = type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "requests", "urllib3")
    if of_http or isinstance(error, HfHubHTTPError | LocalEntryNotFoundError | ConnectionError | TimeoutError):
        return UserError(f"cannot be fetched: {error}", where=where, hint="run the same command again to continue")
    return error
