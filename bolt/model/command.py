"""The command ``predict``, which labels images with a saved model, in ``python -m bolt`` and in the engine.

Finished rows are written to a journal next to the output, ``.NAME.part``. At the end the command copies the rows to a
file with a temporary name, and gives that file the output's name. So a file with the output's name is complete. After a
kill, the same command continues from the journal.
"""

import io
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="the folder of a saved model")],
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="images, folders, or - for a list of paths")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="a new .csv or .jsonl file; by default CSV is printed")
    ] = None,
    sort_into: Annotated[
        Path | None, typer.Option("--sort-into", metavar="DIR", help="a new folder of links to the images, by label")
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option("--accuracy", metavar="PERCENT", help="wanted accuracy; less certain images are marked as unsure"),
    ] = None,
    unsure: Annotated[bool, typer.Option("--unsure", help="the same as --accuracy 95")] = False,
) -> None:
    """Label images with a saved model.

    A row has an image's path, label, score, second label and the margin between the scores of the two labels.
    With -o or --sort-into, a command that was killed continues when it is started again.
    """
    from bolt.model.labels import CannotLabel
    from bolt.model.loading import UnreadableModel
    from bolt.model.threshold import NoThreshold

    # A shell leaves the sign of the home folder in --output=~/table.csv to the command.
    model, paths = Path(os.path.expanduser(model)), [os.path.expanduser(path) for path in paths]
    output, sort_into = (path and Path(os.path.expanduser(path)) for path in (output, sort_into))
    try:
        wanted = 95.0 if unsure and accuracy is None else accuracy
        labelled = _predict(model, paths, output, sort_into, wanted)
    except BrokenPipeError:  # the program that reads the table has ended, so Click ends this command
        raise
    except (CannotLabel, UnreadableModel, NoThreshold, OSError) as error:
        if isinstance(error, OSError) and error.errno and not error.filename:  # a table cannot be written
            error.filename = str(output or sort_into or "standard output")
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("\nstopped; with -o or --sort-into, the same command continues here", err=True)
        raise typer.Exit(130) from None
    raise typer.Exit(0 if labelled else 1)


def _predict(folder: Path, given: list[str], output: Path | None, links: Path | None, accuracy: float | None) -> int:
    """Check the options, label the images and print a summary. Return the number of labelled images."""
    import torch
    from rich.console import Console
    from rich.progress import track

    from bolt.clip.checkpoint_files import files_digest
    from bolt.image_folders import unused_lines
    from bolt.model.labels import Journal, atomic_path, image_paths, label_images, shown, write_links, write_table
    from bolt.model.loading import load_model
    from bolt.model.saving import INDEX
    from bolt.model.threshold import choose_threshold

    total = _check_and_count(folder, given, output, links, accuracy)
    model = load_model(folder, device="cuda" if torch.cuda.is_available() else "cpu")
    threshold = choose_threshold(model.about.notes, accuracy) if accuracy is not None else None
    score, unused, console = threshold.score if threshold else None, Counter[str](), Console(stderr=True)

    with tempfile.TemporaryDirectory() as scratch:
        target = output or links or Path(scratch, "table")
        journal = Journal(target.with_name(f".{target.name}.part"), files_digest([folder / INDEX]))
        rest, quiet = journal.resume(image_paths(given, sys.stdin.buffer, unused)), not console.is_terminal
        rows = label_images(model, rest)
        for row in track(rows, "labelling", total, journal.count, console=console, transient=True, disable=quiet):
            journal.write(row)
        unreadable = [row for row in journal if row.error]
        labelled = journal.count - len(unreadable)
        if labelled and links:
            with atomic_path(links) as new:
                write_links(journal, new, model.about.class_names, score)
        if labelled and output:
            with (
                atomic_path(output) as new,
                open(new, "x", encoding="utf-8", errors="backslashreplace", newline="") as file,
            ):
                write_table(journal, file, as_json=output.suffix == ".jsonl", threshold=score)
        elif labelled and not links:
            out = io.TextIOWrapper(sys.stdout.buffer, "utf-8", "backslashreplace", newline="", write_through=True)
            printed = (row.shown() for row in journal) if sys.stdout.isatty() else journal
            write_table(printed, out, as_json=False, threshold=score)
            out.detach()
        sure = sum(score is None or row.score >= score for row in journal if not row.error)
        remarks = Counter(remark for row in journal for remark in row.remarks)
        journal.remove()

    lines = [f"{labelled:,} image{'s' * (labelled != 1)} labelled"]
    if threshold and sure:
        low, high = threshold.interval(sure)
        at = f"{sure:,} are labelled with {threshold.accuracy:.0f} % accuracy ({low:.0f} to {high:.0f})"
        lines = [f"of {labelled:,} images, {at}, and {labelled - sure:,} are left to you"]
    elif threshold:
        lines = [f"all {labelled:,} images are left to you: none reaches the score {threshold.score:.3f}"]
    lines += [f"note: {line}" for line in unused_lines(unused)]
    lines += [f"note: {remark}: {count:,} of {journal.count:,} images" for remark, count in remarks.items()]
    if unreadable:
        lines.append(f"not read: {len(unreadable):,} of {journal.count:,}")
    lines += [f"  {shown(row.path)}: {shown(row.error)}" for row in unreadable]
    if any(row.path in given and row.error.endswith("it is text") for row in unreadable):
        lines.append("to label the images that a file lists, give - in its place, and < FILE behind it")
    lines += [f"written: {path}" for path in (output, links) if path and labelled]
    typer.echo("\n".join(lines), err=True)
    return labelled


def _check_and_count(
    folder: Path, given: list[str], output: Path | None, links: Path | None, accuracy: float | None
) -> int | None:
    """Check the arguments; return the number of images, or ``None`` if standard input lists them.

    Raises ``CannotLabel`` for the first wrong argument.
    """
    from bolt.image_folders import unused_lines
    from bolt.model.labels import CannotLabel, image_paths, shown
    from bolt.model.loading import read_index

    if accuracy is not None and not 1 <= accuracy < 100:
        raise CannotLabel(f"--accuracy {accuracy:g}: give a percentage from 1 to below 100, such as 95")
    if output is not None and output.suffix not in (".csv", ".jsonl"):
        raise CannotLabel(f"-o {output}: name a .csv or a .jsonl file")
    for option, path in (("-o", output), ("--sort-into", links)):
        if path is not None and os.path.lexists(path):
            raise CannotLabel(f"{option} {path}: this is there already; name another path")
        if path is not None and not path.absolute().parent.is_dir():
            raise CannotLabel(f"{option} {path}: there is no folder {path.parent}")
    if output and links and output.absolute() == links.absolute():
        raise CannotLabel(f"-o and --sort-into are both {output}: name two paths")
    if read_index(folder)["form"] == "adapter":
        raise CannotLabel(f"{folder} holds an adapter without its backbone; export the model with --as state_dict")
    missing = next((path for path in given if path != "-" and not os.path.lexists(path)), None)
    if missing is not None:
        raise CannotLabel(f"there is no file or folder {shown(missing)}")
    if "-" in given:
        return None
    unused = Counter[str]()
    total = sum(1 for _ in image_paths(given, sys.stdin.buffer, unused))
    if not total:
        raise CannotLabel("\n  ".join([f"no images in {', '.join(map(shown, given))}", *unused_lines(unused)]))
    return total
