"""What a GPU does with this project: five measurements with synthetic weights and images, in about ten minutes.

    python benchmarks/gpu.py                      # on a CPU the same measurements run tiny, to show that they work
    python benchmarks/gpu.py --only steps views --output gpu.json

Needs torch and bolt only. Prints the numbers, and writes them as JSON with --output. On a GPU each measurement has a
process of its own, so that running out of memory ends that one alone; its line then says so.

    rates      10^12 operations a second of matrix products and of forward passes, in every precision
    steps      a training step of BOLT, LoRA, full fine-tuning and aTLAS: time on the GPU and on the clock, share of the
               time that the GPU computes, reserved memory
    bits       a cell of 50 steps twice, with PyTorch's default kernels and with those that cells use: equal bits?
    views      a batch of random crops made on the device: equal to those of the host, and milliseconds of both
    packing    steps a second of 1, 4, 8 and 16 processes that share the GPU; to compare, start NVIDIA's multi-process
               service first
"""

import argparse
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_measurements import MEASUREMENTS, SCALES, Row


def _send_rows(pipe: Any, name: str, scale: str, device: str) -> None:
    """Send each row of a measurement as it is found, then ``None``; a row with the error if it fails."""
    try:
        for row in MEASUREMENTS[name](SCALES[scale], device):
            pipe.send(row)
    except Exception as error:
        traceback.print_exc()
        pipe.send({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    pipe.send(None)


def rows_of(name: str, scale: str, device: str, limit: float, isolated: bool) -> Iterator[Row]:
    """Yield a measurement's rows; if ``isolated``, measure in a process of its own and end it after ``limit`` s."""
    if not isolated:
        yield from MEASUREMENTS[name](SCALES[scale], device)
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send_rows, args=(theirs, name, scale, device))
    process.start()
    theirs.close()
    end = time.monotonic() + limit
    try:
        while ours.poll(max(0.0, end - time.monotonic())):
            if (row := ours.recv()) is None:
                break
            yield row
        else:
            yield {"error": f"did not end within {limit:.0f} s"}
            process.terminate()
    except EOFError:
        yield {"error": "the process died"}
    process.join()


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return "-" if value is None else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--scale", choices=list(SCALES), help="default: full on a GPU, tiny on a CPU")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that a measurement may take on a GPU")
    parser.add_argument("--isolate", action="store_true", help="a process for each measurement on a CPU too")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device, scale = arguments.device, arguments.scale or ("full" if arguments.device == "cuda" else "tiny")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, deterministic cuBLAS products are refused
    isolated = arguments.isolate or device == "cuda"
    if device == "cpu":
        torch.set_num_threads(1)
    machine = torch.cuda.get_device_name() if device == "cuda" else "a CPU: the numbers say nothing about a GPU"
    print(f"{machine}, torch {torch.__version__}, scale {scale}")
    found: dict[str, Any] = {"device": machine, "torch": torch.__version__, "cuda": torch.version.cuda, "scale": scale}
    for name in arguments.only:
        print(f"\n{name}", flush=True)
        found[name] = []
        for row in rows_of(name, scale, device, arguments.limit, isolated):
            print("  " + ", ".join(f"{key} {_shown(value)}" for key, value in row.items()), flush=True)
            found[name].append(row)
            if arguments.output:  # after each, so that what was measured is kept if the machine goes away
                arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    if failed := [name for name in arguments.only if any("error" in row for row in found[name])]:
        raise SystemExit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
