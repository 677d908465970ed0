"""``python -m bolt predict``: label images with a saved model; needs no package ``orchestrator``."""

from __future__ import annotations

import typer

from bolt.model.command import predict
from bolt.util.utf8_mode import start_in_utf8_mode

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("predict")(predict)


@app.callback()
def main() -> None:
    """Use saved models."""


if __name__ == "__main__":
    start_in_utf8_mode()
    app()
