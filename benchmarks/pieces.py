"""What two pieces of the CPU engines buy, each beside the same work without it: recordings, and worker processes.

    python benchmarks/pieces.py [--repeats 9] [--workers 2]

Work: one round of FedAvg over 20 clients × 500 rows, one epoch, batch 10, momentum 0.5, one thread a process. All ways
take turns, after one round each that is not timed: in it recordings are made and workers start. A round begins when the
machine has been idle for a second (Linux), since workers gain nothing from a core that others use. Medians, and the
gain of each over the one above. Bits are the same in all ways (tests).
"""

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from engines import one_round, population
from rich.console import Console
from rich.table import Table

from umbel.engines import Simulator, simulator
from umbel.nets.model import Model
from umbel.nets.wrap import build

WORK = {"mlp": (1, 28, 28), "lenet5": (3, 32, 32)}
CLIENTS, ROWS = 20, 500
IDLE, PATIENCE = 0.95, 60  # share of a second, over all cores; how many of them to wait for at most
CLOCKS = Path("/proc/stat")  # Linux: time of all cores since the start, by what they did


def ways(net: Model, workers: int) -> dict[str, Simulator]:
    """The same clients, by what helps with them."""
    people = population(net.shape, CLIENTS, ROWS)
    made = {
        "neither": Simulator(replace(net, recordable=False), people, vectorise=False),
        "recorded": Simulator(net, people, vectorise=False),
        "recorded, workers": Simulator(net, people, vectorise=False),
    }
    made["recorded, workers"].workers = workers
    return made


def wait_for_quiet() -> None:
    """Return once other programs have left the machine alone for a second."""
    def spent() -> list[int]:
        return [int(word) for word in CLOCKS.read_text().splitlines()[0].split()[1:]]

    for _ in range(PATIENCE if CLOCKS.exists() else 0):
        before = spent()
        time.sleep(1)
        ticks = [after - earlier for after, earlier in zip(spent(), before, strict=True)]
        if ticks[3] + ticks[4] >= IDLE * sum(ticks):  # idle, and waiting for a disk
            return


def seconds(feds: dict[str, Simulator], repeats: int) -> dict[str, list[float]]:
    """Of a round each way, in turn."""
    for fed in feds.values():
        one_round(fed)
    spans: dict[str, list[float]] = {way: [] for way in feds}
    for _ in range(repeats):
        for way, fed in feds.items():
            wait_for_quiet()
            started = time.perf_counter()
            one_round(fed)
            spans[way].append(time.perf_counter() - started)
    return spans


def main(
    repeats: Annotated[int, typer.Option(help="Timed rounds of each way.")] = 9,
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
) -> None:
    """Print a table."""
    simulator.WORTH = 0.0  # as in a run of many rounds, which pays for the start of its workers
    table = Table(title=f"One round of {CLIENTS} clients × {ROWS} rows, batch 10, torch {torch.__version__}")
    for column in ("model", "way", "median (s)", "range (s)", "gain over the way above"):
        table.add_column(column, justify="left" if column in ("model", "way") else "right")
    for name, shape in WORK.items():
        feds = ways(build(name, shape, 10), workers)
        spans = seconds(feds, repeats)
        above = 0.0
        for way, taken in spans.items():
            middle = statistics.median(taken)
            table.add_row(f"{name} {'×'.join(map(str, shape))}", way, f"{middle:.2f}",
                          f"{min(taken):.2f}–{max(taken):.2f}", f"{above / middle - 1:.0%}" if above else "")
            above = middle
        for fed in feds.values():
            fed.close()
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
