"""What a run folder costs: SOLO's rounds with one and without, and going on with one; beside older code if given.

    python benchmarks/checkpoints.py [--device cuda] [--old OLD/src] [--repeats 9] [--rounds 12]

SOLO is the dearest: every client's model is written. LeNet-5 of 3x32x32, one epoch of batches of 10, no evaluation but
the last. All that is compared runs in turn, in processes that stay: a run in memory, the same in
a folder, and the folder given one round more (`resume`), which reads all of it.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer


def mark(marks: list[float], _: object) -> None:
    """Write down when a round has ended."""
    marks.append(time.perf_counter())


def serve(clients: int, rows: int, rounds: int, device: str) -> None:
    """Time what is asked for, line by line: `memory` and `folder` a round of them, `resume` as a whole."""
    sys.path.insert(0, str(Path(__file__).parent))
    from engines import population

    import umbel
    from umbel.algorithms.solo import Solo

    fed = umbel.simulate(population((3, 32, 32), clients, rows), model="lenet5", device=device)
    method = Solo(local=umbel.Local(epochs=1, batch=10))
    options = {"eval_every": 10_000, "fine_tune": 0}
    umbel.run(method, fed, rounds=2, **options)
    print("ready", flush=True)
    for asked in sys.stdin:
        with tempfile.TemporaryDirectory() as place:
            out = None if asked.strip() == "memory" else Path(place) / "run"
            marks: list[float] = []
            for_each = functools.partial(mark, marks)
            umbel.run(method, fed, rounds=rounds, out=out, on_round=for_each, **options)
            seconds = (marks[-2] - marks[0]) / (len(marks) - 2)  # neither the first, which records, nor the last
            if asked.strip() == "resume":
                started = time.perf_counter()
                umbel.resume(out, fed=fed, rounds=rounds + 1)
                seconds = time.perf_counter() - started
        print(seconds, flush=True)


def start(source: Path | None, *words: object) -> "subprocess.Popen[str]":
    """A process of some code, ready to be asked."""
    before = os.environ.get("PYTHONPATH", "")
    path = {"PYTHONPATH": f"{source.resolve()}{os.pathsep}{before}"} if source else {}
    process = subprocess.Popen([sys.executable, __file__, "--serve", *map(str, words)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **path})
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise SystemExit("The code to be measured did not start.")
    return process


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    clients: Annotated[int, typer.Option(help="How many.")] = 100,
    rows: Annotated[int, typer.Option(help="Of a client.")] = 100,
    rounds: Annotated[int, typer.Option(help="Of one run.")] = 12,
    repeats: Annotated[int, typer.Option(help="Of everything, in turn.")] = 9,
    old: Annotated[Path | None, typer.Option(help="The src folder of older code.")] = None,
    only_serve: Annotated[bool, typer.Option("--serve", hidden=True)] = False,
) -> None:
    """Print medians and ranges; write checkpoints.json."""
    words = ("--device", device, "--clients", clients, "--rows", rows, "--rounds", rounds)
    if only_serve:
        return serve(clients, rows, rounds, device)
    codes = {"now": start(None, *words), **({"before": start(old, *words)} if old else {})}
    spans: dict[str, list[float]] = {}
    for _ in range(repeats):
        for code, process in codes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            for what in ("memory", "folder", "resume"):
                print(what, file=process.stdin, flush=True)
                spans.setdefault(f"{code} {what}", []).append(float(process.stdout.readline()))
    for process in codes.values():
        process.communicate()
    for name, values in spans.items():
        print(f"{name:16} {1000 * statistics.median(values):9.1f} ms  ({1000 * min(values):.1f} to"
              f" {1000 * max(values):.1f})")
    for code in codes:
        pairs = zip(spans[f"{code} folder"], spans[f"{code} memory"], strict=True)
        share = statistics.median(folder / memory - 1 for folder, memory in pairs)
        print(f"{code}: a folder adds {100 * share:.1f} % to a round (median of {repeats} pairs)")
    if old:
        for what in ("memory", "folder", "resume"):
            ratios = [a / b for a, b in zip(spans[f"now {what}"], spans[f"before {what}"], strict=True)]
            print(f"{what}: now / before {statistics.median(ratios):.3f}")
    (Path(os.environ.get("OUT", ".")) / "checkpoints.json").write_text(json.dumps(spans, indent=1))


if __name__ == "__main__":
    typer.run(main)
