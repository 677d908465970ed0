"""``python -m bolt predict``: label images with a saved model; needs no package ``orchestrator``."""

from __future__ import annotations

from bolt.util.start import prepare_process


def main() -> None:
    """Run the ``bolt`` command."""
    import typer

    from bolt.model.command import predict

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("predict")(predict)
    app.callback(help="Use saved models.")(lambda: None)
    app()


if __name__ == "__main__":
    prepare_process()
    main()
