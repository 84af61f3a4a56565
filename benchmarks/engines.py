"""Speed of the engines against a plain torch loop, the same work side by side in one run, as ratios.

    python benchmarks/engines.py [--clients 20] [--rows 500] [--repeats 3]

Work: one epoch of local SGD (batch 10, momentum 0.5) for all clients. The opponent is the fairest simple one: a
module, `torch.optim.SGD`, slices of tensors, no DataLoader, one thread. Best of the repeats; the spread is shown.
"""

import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from umbel.algorithms import FedAvg, Local
from umbel.data.clients import Pool, Population
from umbel.engines import LoopEngine, Simulator, simulator
from umbel.federation.door import Cohort, Federation, one_thread
from umbel.nets.model import Model
from umbel.nets.wrap import build

WORK = {"mlp": ((1, 8, 8), (1, 14, 14), (1, 28, 28)), "lenet5": ((1, 28, 28), (3, 32, 32))}
LOCAL = Local(epochs=1)


def population(shape: tuple[int, ...], clients: int, rows: int) -> Population:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients * rows, *shape), dtype=np.uint8)
    y = rng.integers(0, 10, clients * rows)
    train = list(np.arange(clients * rows).reshape(clients, rows))
    return Population(Pool(x, y), train, [held[:1] for held in train], np.zeros(clients, dtype=np.int64), 10)


def plain(net: Model, people: Population) -> None:
    x, y = torch.from_numpy(people.pool.x).float() / 255, torch.from_numpy(people.pool.y)
    with one_thread():
        for held in people.train:
            module = net.make()
            optimiser = torch.optim.SGD(module.parameters(), lr=LOCAL.lr, momentum=LOCAL.momentum)
            for rows in torch.from_numpy(held)[torch.randperm(len(held))].split(LOCAL.batch):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
                optimiser.step()


def one_round(fed: Federation) -> None:
    algorithm = FedAvg(local=LOCAL)
    algorithm.round(fed, algorithm.init(fed, 0), Cohort(torch.arange(len(fed.names)), 0))


def timed(work: Callable[[], None], repeats: int) -> list[float]:
    work()
    spans = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        spans.append(time.perf_counter() - started)
    return spans


def main(
    clients: Annotated[int, typer.Option(help="Clients in a round.")] = 20,
    rows: Annotated[int, typer.Option(help="Training rows of each.")] = 500,
    repeats: Annotated[int, typer.Option(help="Timed repeats, after one that is not timed.")] = 3,
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
) -> None:
    """Print a table of times and ratios."""
    simulator.WORTH = 0.0  # workers are to be seen even where they would not be worth their start
    table = Table(title=f"One epoch of {clients} clients × {rows} rows, batch 10, torch {torch.__version__}, 1 thread")
    for column in ("model", "parameters", "engine", "best (s)", "spread (s)", "× plain loop"):
        table.add_column(column, justify="left" if column in ("model", "engine") else "right")
    for name, shapes in WORK.items():
        for shape in shapes:
            net, people = build(name, shape, 10), population(shape, clients, rows)
            engines = {
                "loop": LoopEngine(net, people),
                "one by one": Simulator(net, people, vectorise=False),
                "vectorised": Simulator(net, people, vectorise=True),
                f"{workers} workers": Simulator(net, people, vectorise=False),
            }
            engines[f"{workers} workers"].workers = workers
            base = timed(lambda net=net, people=people: plain(net, people), repeats)
            label = f"{name} {'×'.join(map(str, shape))}"
            table.add_row(label, f"{net.parameters:,}", "plain torch", f"{min(base):.2f}",
                          f"{max(base) - min(base):.2f}", "1.00")
            for kind, fed in engines.items():
                spans = timed(lambda fed=fed: one_round(fed), repeats)
                table.add_row("", "", kind, f"{min(spans):.2f}", f"{max(spans) - min(spans):.2f}",
                              f"{min(base) / min(spans):.2f}")
                fed.close()
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
