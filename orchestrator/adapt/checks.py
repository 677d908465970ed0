"""What ``adapt`` checks of a request before it decodes the first image."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from orchestrator.adapt.adaptation import Request
from orchestrator.adapt.own_images import image_parts
from orchestrator.catalog import Catalog
from orchestrator.catalog.validation import check_templates
from orchestrator.util.atomic_files import nearest_existing
from orchestrator.util.errors import UserError


def check_request(request: Request, catalog: Catalog) -> None:
    """Check every option that needs no image. Raises ``UserError`` that names the option.

    Args:
        catalog: of the user's catalog files.
    """
    catalog.backbone(request.backbone, "--backbone")
    if request.images.templates:
        try:
            check_templates(list(request.images.templates))
        except ValueError as error:
            raise UserError(str(error), where="--template") from None
    if request.device is not None and request.device != "cpu" and not torch.cuda.is_available():
        raise UserError(
            f"this machine has no GPU for {request.device}", where="--device", hint="leave it out, or give cpu"
        )
    if request.data_root is not None and not request.data_root.is_dir():
        raise UserError(f"there is no folder {request.data_root}", where="--data-root")
    if request.sources is not None and not Path(request.sources).is_dir() and request.sources not in catalog.domains:
        raise UserError(
            f"{request.sources!r} is neither a folder nor a domain",
            where="--sources",
            hint=f"give a folder of fine-tuned checkpoints, or a domain: {', '.join(catalog.domains)}",
        )
    if request.model.exists():
        raise UserError(f"{request.model} is there already", where="-o", hint="name another folder, or remove this one")
    if request.page.is_dir():
        raise UserError(f"{request.page}, the file of the page, is a folder", where="-o", hint="name another model")
    parts = [part for part in image_parts(request.folder) if part is not None]
    for option, path in (("-o", request.model), ("--store", Path(request.store_url))):
        if any(Path(os.path.realpath(path)).is_relative_to(os.path.realpath(part)) for part in parts):
            raise UserError(
                f"{path} lies in the images, {request.folder}",
                where=option,
                hint="run the command in another folder, or give --store and -o outside of the images",
            )
        above = nearest_existing(path)
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UserError(f"{path} cannot be made: {above} is no folder that can be written to", where=option)
