"""Fetching a backbone's weights where the hub cannot be reached."""

import io
import logging

import pytest
from rich.console import Console

from orchestrator.artifacts.load_backbone import fetch_weights
from orchestrator.catalog import load_catalog
from orchestrator.util.errors import UserError


def test_the_error_names_the_first_cause(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nowhere")
    said = io.StringIO()
    console = Console(file=said, force_terminal=True)
    with pytest.raises(UserError) as caught:
        fetch_weights(load_catalog().backbone("vit-b-32"), console, where="--backbone", instead="; then this")
    assert caught.value.where == "--backbone"
    assert "offline" in caught.value.what.lower()
    assert "Last error" not in caught.value.what
    assert caught.value.hint.endswith("backbones add --help; then this")
    assert "fetching the weights of vit-b-32" in said.getvalue()
    assert not caplog.records
    assert logging.getLogger("huggingface_hub").level == logging.WARNING, "as the hub sets it"


def test_a_backbone_with_a_file_of_weights_is_not_fetched() -> None:
    said = io.StringIO()
    fetch_weights(load_catalog().backbone("tiny-clip"), Console(file=said, force_terminal=True))
    assert not said.getvalue()
