"""``python -m bolt predict`` labels images with a saved model. The package ``orchestrator`` is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bolt.util.start import prepare_process

if TYPE_CHECKING:
    import typer


def make_app() -> typer.Typer:
    """Return the command line of ``python -m bolt``."""
    import typer

    from bolt.model.command import predict

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("predict")(predict)
    app.callback(help="Use saved models.")(lambda: None)
    return app


if __name__ == "__main__":
    prepare_process()
    make_app()()
