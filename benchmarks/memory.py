"""Memory of a run over its rounds: resident megabytes of this process, which must not grow.

    python benchmarks/memory.py [--rounds 150]

FedAvg, and FLAG with all its evidence, on 50 random clients of 100 rows, an MLP on 28 px images, scored every round.
After every round the C library is asked to give back what it holds free: without that, memory steps up to its plateau
now or a hundred rounds later, as the allocator finds room or does not. Growth is the median of the last ten rounds
minus the median of rounds 11 to 20.
"""

import ctypes
import gc
import json
import statistics
from pathlib import Path
from typing import Annotated

import typer
from engines import population

from umbel.algorithms import FLAG, FedAvg, Local
from umbel.engines import Simulator
from umbel.nets.wrap import build
from umbel.runs.run import rounds as rounds_of

RESULTS = Path(__file__).parent / "results"
PAGE = 4096


def resident() -> float:
    """MB that are in use now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # glibc
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def main(rounds: Annotated[int, typer.Option(help="Rounds of each run, at least 30.")] = 150) -> None:
    """Print and write JSON."""
    RESULTS.mkdir(exist_ok=True)
    local, found = Local(epochs=1), {}
    methods = {"fedavg": FedAvg(local=local), "flag": FLAG(gradient_epochs=1, cut="gap", local=local)}
    for name, algorithm in methods.items():
        fed = Simulator(build("mlp", (1, 28, 28), 10), population((1, 28, 28), 50, 100))
        held = [resident() for _ in rounds_of(algorithm, fed, rounds=rounds)]
        grown = statistics.median(held[-10:]) - statistics.median(held[10:20])
        found[name] = {"resident_mb": [round(value, 1) for value in held], "grown_mb": round(grown, 1)}
        print(f"{name}: {held[9]:.0f} MB after 10 rounds, {held[-1]:.0f} MB after {rounds}; grown by {grown:.1f} MB")
    (RESULTS / "memory.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
