"""The simulator on a GPU: does it agree with the loop engine on the CPU, and how fast is it?

    python benchmarks/gpu.py [--clients 20] [--rows 500]

Needs no more than torch, numpy, scipy, scikit-learn, safetensors, typer and rich. Agreement is measured over one round
of one epoch (float32, no TF32); time is the best of three such rounds.
"""

import time
from typing import Annotated

import torch
import typer
from engines import LOCAL, WORK, population
from rich.console import Console
from rich.table import Table

from umbel import models, tree
from umbel.algorithms import FedAvg
from umbel.engines import LoopEngine, Simulator
from umbel.federation import Cohort, Federation
from umbel.tree import Stack


def one_round(fed: Federation) -> tuple[Stack, float]:
    algorithm = FedAvg(LOCAL)
    state = algorithm.init(fed, 0)
    started = time.perf_counter()
    state = algorithm.round(fed, state, Cohort(torch.arange(len(fed.names)), 0))
    if fed.device.type == "cuda":
        torch.cuda.synchronize()
    return tree.to(state.models, "cpu"), time.perf_counter() - started


def main(
    clients: Annotated[int, typer.Option(help="Clients in a round.")] = 20,
    rows: Annotated[int, typer.Option(help="Training rows of each.")] = 500,
) -> None:
    """Print a table of times, ratios and differences."""
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a GPU that torch can use.")
    table = Table(title=f"One epoch of {clients} clients × {rows} rows, batch 10, {torch.cuda.get_device_name()},"
                  f" torch {torch.__version__}")
    for column in ("model", "loop, GPU (ms)", "simulator, GPU (ms)", "ratio", "largest difference to the CPU's loop"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, shapes in WORK.items():
        for shape in shapes:
            net, people = models.build(name, shape, 10), population(shape, clients, rows)
            reference, _ = one_round(LoopEngine(net, people))
            loop, fast = LoopEngine(net, people, device="cuda"), Simulator(net, people, device="cuda")
            found, _ = one_round(fast)
            spans = [one_round(fast)[1] for _ in range(3)]
            slow = one_round(loop)[1]
            gap = float((tree.flat(found) - tree.flat(reference)).abs().max())
            table.add_row(f"{name} {'×'.join(map(str, shape))}", f"{1000 * slow:.0f}", f"{1000 * min(spans):.0f}",
                          f"{slow / min(spans):.1f}", f"{gap:.1e}")
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
