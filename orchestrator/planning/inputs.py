"""Which datasets, backbones and checkpoints a plan needs that this machine does not have."""

from __future__ import annotations

from orchestrator.artifacts.adopted_source import AdoptedSource
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.support_images import SupportImages
from orchestrator.catalog import missing_checkpoint, missing_data, missing_weights
from orchestrator.planning.plan import Plan
from orchestrator.util.errors import UserError

SHOWN_ERRORS = 4


def missing_inputs(plan: Plan) -> dict[str, UserError]:
    """Everything that a run of the plan would miss: its name, and the error that says how to get it.

    A dataset counts only while artifacts that are made from its images are still to be built.
    """
    catalog = plan.catalog
    backbones = {cell.backbone.name for cell in plan.todo}
    datasets = {spec.dataset.name for spec in plan.missing if isinstance(spec, Images | SupportImages)}
    adopted = [spec for spec in plan.missing if isinstance(spec, AdoptedSource)]
    found = {name: missing_weights(catalog.backbone(name)) for name in sorted(backbones)}
    found |= {name: missing_data(catalog.dataset(name), plan.data_root) for name in sorted(datasets)}
    for spec in adopted:
        entry = catalog.checkpoints[spec.backbone.name, spec.dataset]
        found[f"checkpoint of {spec.dataset} for {spec.backbone.name}"] = missing_checkpoint(entry)
    return {name: error for name, error in found.items() if error is not None}


def check_inputs(plan: Plan) -> None:
    """Raise ``UserError`` naming everything that a run of the plan would miss."""
    errors = list(missing_inputs(plan).values())
    if len(errors) == 1:
        raise errors[0]
    if errors:
        shown = "\n".join(f"- {error}" for error in errors[:SHOWN_ERRORS])
        more = f"\n- ... and {len(errors) - SHOWN_ERRORS} more" if len(errors) > SHOWN_ERRORS else ""
        raise UserError(f"{len(errors)} inputs are missing; nothing was started:\n{shown}{more}")
