"""``export``: write a finished cell's model to disk, and register it in MLflow."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import ComputeSettings, FormOption, with_options
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError


@with_options
def export(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="a cell's id, or the beginning of one")],
    form: FormOption = "adapter",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="a new folder; by default exports/CELL.FORM")
    ] = None,
    with_basis: Annotated[
        bool, typer.Option("--with-basis", help="store the basis of the coefficients in the adapter")
    ] = False,
    register: Annotated[
        str | None, typer.Option("--register", metavar="NAME", help="register the model in MLflow under this name")
    ] = None,
    *,
    settings: ComputeSettings,
) -> None:
    """Save a finished cell's model.

    The model's accuracy is compared with the recorded accuracy. The saved model is read back, and its logits are
    compared with those before saving.
    """
    from orchestrator.artifacts.spec import ArtifactCache
    from orchestrator.models.export import COMPARED_IMAGES, check_form, example_image, restore_model, save_model
    from orchestrator.models.find_result import find_result

    if with_basis and form != "adapter":
        what = f"the form {form} holds the merged tower, without a basis"
        raise UserError(what, where="--with-basis", hint="leave this option out, or take --as adapter")
    loaded = ArtifactCache(settings)
    result = find_result(loaded.store, cell)
    backbone = loaded.catalog.backbone(result.cell.backbone.name)
    check_form(form, backbone)
    folder = output or Path("exports", f"{result.cell.id}.{form}")
    if folder.exists():
        raise UserError(f"{folder} is there already", where="-o", hint="name a new folder")
    made = restore_model(result, loaded)
    if made.model.tower.prompts is not None:
        check_form(form, backbone, result.cell.method.name)
    difference = save_model(made, result, loaded, folder, form, with_basis=with_basis)
    how = "from the stored adapter" if made.how == "kept" else "made by running the cell again"
    recorded = f"recorded {result.accuracies[0]:.2f} %" if made.warnings else "equal to the recorded one"
    logits = "the same as" if difference == 0 else f"within {difference:.1e} of"
    print_line(f"{result.cell.id}")
    print_line(f"  model: {how}")
    print_line(f"  accuracy: {made.accuracy:.2f} %, {recorded}")
    print_line(f"  read back: the logits of {COMPARED_IMAGES} test images are {logits} those before saving")
    print_line(f"  written: {folder}")
    for warning in made.warnings:
        print_line(f"  warning: {warning}", style="yellow")

    if register is None:
        return
    from orchestrator.tracking.location import tracking_location
    from orchestrator.tracking.model_registry import register_model

    place = tracking_location(loaded.store)
    with tempfile.TemporaryDirectory(prefix="bolt-") as scratch:
        saved = Path(scratch, "model")
        save_model(made, result, loaded, saved, "state_dict")
        try:
            version = register_model(place, result.cell.id, saved, register, example_image(result, loaded))
        except LookupError as error:
            hint = "`python -m orchestrator sync GRID` tracks the cells of a grid"
            raise UserError(f"{error} in {place.uri}", where="--register", hint=hint) from None
    print_line(f"  registered: models:/{register}/{version}")
