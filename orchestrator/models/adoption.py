"""Adopts fine-tuned checkpoints from elsewhere: checks them, adds them to a catalog file, and can check them again."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bolt.clip.checkpoint_files import (
    ADAPTER_CONFIG,
    FOLDER_WEIGHTS,
    UnreadableCheckpoint,
    checkpoint_files,
    config_file,
    preferred_weights,
)
from orchestrator.artifacts.adopted_source import check_digest, examined_checkpoint
from orchestrator.artifacts.load_backbone import load_backbone
from orchestrator.artifacts.source_model import accuracy_inputs, source_accuracy
from orchestrator.artifacts.spec import artifact_cache, build, with_inputs
from orchestrator.catalog import Catalog, backbone_ref, checkpoint_digest, dataset_ref, load_catalog, missing_data
from orchestrator.catalog.location import display_path
from orchestrator.catalog.yaml_files import read_mapping, write_entries
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.class_words import letters_of
from orchestrator.util.errors import UserError, explained, hub_explained
from orchestrator.util.grouping import grouped
from orchestrator.util.locks import changing

HUB = "hf:"
"""Prefix of an address on the Hugging Face hub: ``hf:owner/name[@revision]``."""

CONFIGURATIONS = (
    "config.json", "open_clip_config.json", "preprocessor_config.json", "processor_config.json", ADAPTER_CONFIG,
    "vocab.json", "tokenizer.json",
)  # fmt: skip
"""The files of a repository that describe the architecture, the preprocessing of images, a LoRA and the tokens."""

GENERIC_NAMES = frozenset(
    {"model", "pytorch_model", "open_clip_model", "open_clip_pytorch_model", "finetuned", "checkpoint", "visual"}
)
"""File names that say nothing about the dataset. For these, the folder's name is used."""

OTHER_DATASETS = (
    *("emnist_letters", "emnist_byclass", "emnist_bymerge", "emnist_mnist", "tiny_imagenet", "mini_imagenet"),
    *("imagenet_100", "imagenet_c", "imagenet_p", "cifar10_c", "cifar100_c", "cifar10_1", "mnist_m", "colored_mnist"),
)
"""Datasets that the catalog lacks, but whose names contain a key of the catalog."""

_FAMILY = re.compile(r"clip-vit-(?:base|large|huge)-patch\d+_(.+)")


def adopt_checkpoints(
    paths: Sequence[str],
    backbone: str,
    dataset: str | None,
    catalogs: Sequence[Path],
    *,
    copy: bool = False,
    note: str = "",
    say: Callable[[str], None],
) -> list[str]:
    """Check fine-tuned checkpoints, and add all of them or none to the last of the catalog files.

    Returns the keys of the datasets that the checkpoints were fine-tuned on.

    Args:
        paths: files, folders, or addresses ``hf:owner/name[@revision]``. A repository is fetched into a folder beside
            the catalog file.
        dataset: key of the dataset of a single checkpoint; ``None`` guesses the dataset from each file's or folder's
            name.
        copy: whether to copy the files to a folder beside the catalog file.
        note: text for the catalog file; by default the address of a checkpoint from the hub.
        say: prints a line.

    Raises:
        UserError: a name is unknown, a dataset cannot be guessed, a checkpoint cannot be fetched or does not fit the
            backbone, or another catalog file has a checkpoint for the same backbone and dataset. Then nothing is added.
    """
    target = catalogs[-1]
    catalog = load_catalog(path for path in catalogs if path != target or path.exists())
    entry = catalog.backbone(backbone, "--backbone")
    if dataset is not None:
        catalog.dataset(dataset, "--dataset")
        if len(paths) > 1:
            what = f"one dataset is given for {len(paths)} checkpoints"
            raise UserError(what, where="--dataset", hint="adopt one at a time")
    if not entry.has_matrices:
        what = f"{backbone} gives features only, and methods with sources need weight matrices"
        raise UserError(what, where="--backbone", hint="`backbones list` shows other backbones")
    candidates: dict[str, tuple[Path, str]] = {}  # dataset -> (checkpoint, note)
    for text in paths:
        if (name := dataset or _dataset_of(text, catalog)) in candidates:
            hint = "adopt one of them; adopt a checkpoint of another dataset separately with --dataset NAME"
            raise UserError(f"several checkpoints are for {name}: {candidates[name][0]}, {text}", hint=hint)
        file = catalog.files.get(("checkpoints", f"{backbone}/{name}"))
        if file is not None and file != display_path(target):
            what = f"{file} has a checkpoint of {name} for {backbone} already"
            raise UserError(what, where=str(target), hint="remove that entry first")
        path, origin = _found(text, target.absolute().parent / "checkpoints")
        candidates[name] = path, note or origin

    frozen = load_backbone(entry, "cpu").tower
    for name, (path, _) in candidates.items():
        examined = examined_checkpoint(path, frozen)
        say(f"{name}: {path}")
        for line in (examined.summary, *examined.notes):
            say(f"  {line}")

    with changing(target):
        section = read_mapping(target).get("checkpoints") if target.exists() else None
        entries: dict[str, Any] = dict((section or {}).get(backbone) or {})
        home = target.absolute().parent
        for name, (path, origin) in candidates.items():
            digest = checkpoint_digest(path)
            if copy:
                path = _copied(path, home / "checkpoints" / backbone / f"{name}-{digest[:8]}")
            stated = path.relative_to(home).as_posix() if path.is_relative_to(home) else str(path)
            if name in entries:
                say(f"{name}: replaces {entries[name]['file']}")
            entries[name] = {"file": stated, "sha256": digest} | ({"note": origin} if origin else {})
        first: dict[str, str] = {}  # digest -> dataset
        for name, each in entries.items():
            if (twin := first.setdefault(each["sha256"], name)) != name:
                say(f"note: {twin} and {name} have the same checkpoint, which counts twice; remove one of the entries")
        write_entries(target, {"checkpoints": {backbone: entries}}, replace=True)
    say(f"written to {display_path(target)}; use them with: --catalog {target}")
    return list(candidates)


def verify_checkpoints(settings: RunSettings, backbone: str | None, *, say: Callable[[str], None]) -> bool:
    """Check every adopted checkpoint again, and measure its accuracy where the dataset's images are on this machine.

    Returns whether every checkpoint is unchanged and fits. Raises ``UserError`` for an unknown backbone.
    """
    catalog = load_catalog(settings.catalog_files)
    if backbone is not None:
        catalog.backbone(backbone, "--backbone")
    entries = [entry for (of, _), entry in catalog.checkpoints.items() if backbone in (None, of)]
    if not entries:
        say("no checkpoint is adopted" + (f" for {backbone}" if backbone else "") + "; `sources adopt` adopts them")
    sound = True
    for entry in sorted(entries, key=lambda entry: (entry.backbone, entry.dataset)):
        try:
            check_digest(entry)
            loaded = artifact_cache(settings)
            ref = backbone_ref(loaded.catalog.backbone(entry.backbone))
            examined = examined_checkpoint(entry.file, loaded.backbone(ref).tower)
            wanted = loaded.catalog.dataset(entry.dataset)
            if missing_data(wanted, loaded.data_root) is not None:
                score = "accuracy not measured, because the dataset's images are not here"
            else:
                dataset = dataset_ref(wanted, loaded.data_root)
                for spec in with_inputs(accuracy_inputs(ref, dataset, loaded.image_size(ref))):
                    build(spec, settings)
                found = source_accuracy(examined.tensors, ref, dataset, loaded)
                score = f"{found['accuracy_fine_tuned']:.2f} % of {found['test_images']} test images right, "
                score += f"zero-shot {found['accuracy_zero_shot']:.2f} %"
            line = f"as adopted; {examined.summary}; {score}"
        except UserError as error:
            sound, line = False, f"WRONG: {error}"
        say(f"{entry.backbone} {entry.dataset}: {line}")
    return sound


def guess_dataset(path: Path, names: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the keys of the datasets whose names are whole words in the name of a file or folder.

    If the file's name is generic, the folder's name counts. A dataset inside a longer name of another dataset does not
    count: neither ``mnist`` in ``emnist-mnist`` nor ``emnist`` in ``emnist_letters``. A public family of checkpoints
    begins with ``clip-vit-base-patch32_``; there, everything after this prefix is the dataset's name.

    ``names``: key of a dataset -> its other names.
    """
    stem = path.stem if path.suffix and not path.is_dir() else path.name
    if stem.lower().removesuffix(".safetensors").removesuffix(".index") in GENERIC_NAMES:
        stem = path.parent.name
    called = {name: key for key, others in names.items() for name in others} | {name: name for name in names}
    if of_family := _FAMILY.fullmatch(stem.lower()):
        exact = {key for name, key in called.items() if name == of_family[1]}
        return sorted(exact or {key for name, key in called.items() if letters_of(name) == letters_of(of_family[1])})
    known = grouped(called | dict.fromkeys(OTHER_DATASETS, ""), letters_of)
    longest_first = sorted(known, key=len, reverse=True)  # so that a name inside another one is not found
    whole = "|".join(r"[\W_]*".join(letters) for letters in longest_first)
    texts = re.findall(rf"(?<![^\W_])(?:{whole})(?![^\W_])", stem.lower())
    return sorted({called[name] for text in texts for name in known.get(letters_of(text), ()) if name in called})


def _dataset_of(text: str, catalog: Catalog) -> str:
    """Return the dataset that the name of a checkpoint stands for. ``text``: one path of the command line."""
    path = Path(text.removeprefix(HUB).partition("@")[0]) if text.startswith(HUB) else Path(text).absolute()
    fitting = guess_dataset(path, {key: entry.also_called for key, entry in catalog.datasets.items()})
    if len(fitting) != 1:
        what = f"could be {' or '.join(fitting)}" if fitting else "names no dataset of the catalog"
        raise UserError(f"{path.name} {what}", where=text, hint="say what it was fine-tuned on: --dataset NAME")
    return fitting[0]


def _found(text: str, folder: Path) -> tuple[Path, str]:
    """Return checkpoint and hub address for one path of the command line. What is on the hub is fetched into a folder.

    The checkpoint is a file or, if it is in parts, the folder with the parts and their index. The address is empty if
    the checkpoint does not come from the hub.
    """
    on_hub = text.startswith(HUB)
    path, origin = fetch_repository(text.removeprefix(HUB), folder) if on_hub else (Path(text).absolute(), "")
    with explained(UnreadableCheckpoint, where=text if on_hub else ""):
        files = checkpoint_files(path)
    return files[0] if len(files) == 1 else path, origin


def fetch_repository(address: str, folder: Path) -> tuple[Path, str]:
    """Fetch a repository's weights and configuration from the hub into a new folder inside ``folder``.

    Returns the new folder, and the address ``hf:owner/name@commit``. After an interruption, the same call continues the
    download. Raises ``UserError`` if the repository does not exist, is gated, has no weights, or cannot be reached.
    """
    from huggingface_hub import HfApi, hf_hub_download

    repo, _, revision = address.partition("@")
    where = f"{HUB}{address}"
    with hub_explained(where):
        info = HfApi().model_info(repo, revision=revision or None)
        # Every commit has a folder, so that a new commit does not change checkpoints that were adopted before.
        home = folder / f"{repo.replace('/', '--')}-{(info.sha or 'main')[:8]}"
        for name in _wanted([sibling.rfilename for sibling in info.siblings or ()], where):
            hf_hub_download(repo, name, revision=info.sha, local_dir=home)
    return home, f"{HUB}{repo}@{info.sha}"


def _wanted(names: Sequence[str], where: str) -> list[str]:
    """Return the names of the files to fetch: one set of weights, in safetensors if possible, and configurations."""
    with explained(UnreadableCheckpoint, where=where, hint="download it, and give the path of this file"):
        first = preferred_weights(names, "the repository")
    if first is None:
        raise UserError(f"the repository holds none of {', '.join(FOLDER_WEIGHTS)}", where=where)
    stem = first.removesuffix(".index.json").partition(".")[0]
    parts = [name for name in names if name.startswith(f"{stem}-") and "/" not in name] if "index" in first else []
    return [first, *parts, *(name for name in CONFIGURATIONS if name in names)]


def _copied(path: Path, home: Path) -> Path:
    """Copy a checkpoint with its configuration and index into the folder ``home``, and return the copy's path."""
    files, config = checkpoint_files(path), config_file(path)
    in_parts = len(files) > 1
    index = sorted((path if path.is_dir() else path.parent).glob("*.index.json")) if in_parts else []
    home.mkdir(parents=True, exist_ok=True)
    for file in (*files, *index, *([config] if config else [])):
        if file.parent != home:
            shutil.copyfile(file, home / file.name)
    return home if in_parts else home / path.name
