"""Groups of commands, each a typer application of its own that :mod:`orchestrator.cli` hangs in."""
