"""``backbones``: list the CLIP models of the catalog, and add others."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import CatalogFiles, OwnCatalog, table_console
from orchestrator.util.console import plain_table, print_line
from orchestrator.util.errors import UserError

app = typer.Typer(no_args_is_help=True, help="List backbones, and add models of open_clip.")


@app.command("list")
def list_backbones(catalog: CatalogFiles = None) -> None:
    """List the backbones, and whether their weights are on this machine."""
    from orchestrator.catalog import load_catalog, missing_weights
    from orchestrator.catalog.location import display_path

    numbers = ("image", "patch", "parameters", "GFLOP")
    names = ("backbone", "architecture", "weights", "activation")
    table = plain_table(*names, *numbers, "file", right=numbers, overflow="fold")
    loaded = load_catalog(catalog or ())
    for entry in loaded.backbones.values():
        weights = entry.weights.pretrained or entry.weights.hub or Path(entry.weights.file or "").name
        table.add_row(
            entry.name,
            Path(entry.architecture).stem,
            weights if missing_weights(entry) is None else f"{weights} (not there)",
            "quick_gelu" if entry.quick_gelu else "gelu",
            str(entry.image_size),
            str(entry.patch) if entry.has_matrices else "features only",
            f"{entry.parameters / 1e6:.1f} M",
            f"{entry.gflops_per_image:.4g}",
            display_path(Path(loaded.files["backbones", entry.name])),
        )
    table_console().print(table)


@app.command()
def add(
    architecture: Annotated[
        str, typer.Argument(help="a model of open_clip by name or JSON file, a folder, or hf:OWNER/NAME")
    ],
    catalog: OwnCatalog,
    pretrained: Annotated[str | None, typer.Option("--pretrained", metavar="TAG", help="weights of open_clip")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="weights in open_clip's layout")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="name of the backbone; by default made from architecture and weights")
    ] = None,
    quick_gelu: Annotated[
        bool | None, typer.Option("--quick-gelu/--gelu", help="the activation the weights were trained with")
    ] = None,
) -> None:
    """Add a CLIP model of open_clip to a catalog file."""
    from orchestrator.catalog import load_catalog
    from orchestrator.catalog.yaml_files import write_entries
    from orchestrator.models.backbone_entry import backbone_entry, model_folder
    from orchestrator.util.locks import changing

    target = catalog[-1]
    loaded = load_catalog(path for path in catalog if path != target or path.exists())

    def check_key(key: str) -> None:
        if key in loaded.backbones:
            where = loaded.files["backbones", key]
            raise UserError(f"{where} already has a backbone {key}", hint="give another --name")

    if not (pretrained or file) and (found := model_folder(architecture, name, target.parent, check_key)):
        config, file, name = found
        architecture = str(config)
    entry = backbone_entry(architecture, pretrained, file, name, quick_gelu, lambda note: print_line(f"note: {note}"))
    check_key(entry.name)
    fields = entry.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
    with changing(target):
        write_entries(target, {"backbones": {entry.name: fields}})
    activation = "quick_gelu" if entry.quick_gelu else "gelu"
    print_line(
        f"{entry.name}: {entry.image_size} pixels ({entry.resize}, {entry.interpolation}), "
        + (f"patches of {entry.patch}, " if entry.has_matrices else "features only, ")
        + f"{entry.parameters / 1e6:.1f} M parameters, {entry.gflops_per_image:.4g} GFLOP an image, {activation}; "
        + f"in {target}"
    )
