"""How fast the networks for series and texts train side by side, beside a plain loop with torch's own layers.

    python benchmarks/sequences.py [--clients 20] [--repeats 5]

Work: one epoch of every client, 50 rows each, batch 10, plain SGD, one thread; series of 24 hours of 11 measures with
three targets, and texts of 80 characters with one target at each. The loop is what a user would write: nn.GRU, or
nn.Conv1d behind zeros, autograd, torch.optim.SGD. Both ways take turns, after one that is not timed. Medians, and how
many times as fast as the loop the simulator is side by side; one by one it replays recorded gradients.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear, pad

from umbel.algorithms import FedAvg, Local
from umbel.data.clients import Pool, Population
from umbel.engines import Simulator
from umbel.federation.door import Cohort
from umbel.nets.model import Model
from umbel.nets.objective import NextToken, Regress
from umbel.nets.sequences import CausalConv1d
from umbel.nets.wrap import build

ROWS, BATCH = 50, 10
VOCABULARY, PLACES = 75, 80


class Plain(nn.Module):
    """The same network from torch's own layers."""

    def __init__(self, net: Model) -> None:
        super().__init__()
        made = net.make()
        self.embedding, self.head, self.everywhere = made.embedding, made.head, made.everywhere
        self.over_time = made.over_time
        if net.name == "gru":
            self.over_time = nn.GRU(made.over_time.input_size, made.over_time.hidden_size, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """As the network's own."""
        x = self.embedding(x)
        if isinstance(self.over_time, nn.GRU):
            x = self.over_time(x)[0]
        else:
            for k, layer in enumerate(self.over_time.layers):
                assert isinstance(layer, CausalConv1d)
                margin = 2 * layer.dilation[0]
                seen = conv1d(pad(x.mT, (margin, 0)), layer.weight, layer.bias, dilation=layer.dilation).mT.relu()
                x = x + seen if k else seen
        return linear(x if self.everywhere else x[:, -1], self.head.weight, self.head.bias)


def people(net: Model, clients: int) -> Population:
    """Random rows: what they say does not matter to time."""
    rng, count = np.random.default_rng(0), clients * ROWS
    if net.tokens:
        x = rng.integers(0, VOCABULARY, (count, PLACES))
        y = rng.integers(0, VOCABULARY, (count, PLACES))
    else:
        x = rng.normal(size=(count, *net.shape)).astype(np.float32)
        y = rng.normal(size=(count, *net.objective.target)).astype(np.float32)
    rows = np.split(np.arange(count), clients)
    return Population(Pool(x, y), rows, rows, np.zeros(clients, dtype=np.int64), net.objective)


def simulated(net: Model, held: Population, vectorise: bool) -> Callable[[], None]:
    """A round of FedAvg by the simulator."""
    fed = Simulator(net, held, vectorise=vectorise)
    method = FedAvg(local=Local(lr=0.01, momentum=0.0, epochs=1, batch=BATCH))
    state = method.init(fed, 0)

    def once() -> None:
        method.round(fed, state, Cohort(torch.arange(len(held.train)), 0))

    return once


def looped(net: Model, held: Population) -> Callable[[], None]:
    """Every client in turn, and the mean of their models."""
    first = Plain(net)
    start = {name: leaf.clone() for name, leaf in first.state_dict().items()}

    def once() -> None:
        ends = []
        for own in held.train:
            first.load_state_dict(start)
            optimiser = torch.optim.SGD(first.parameters(), lr=0.01)
            for batch in torch.from_numpy(own)[torch.randperm(ROWS)].split(BATCH):
                x, y = torch.from_numpy(held.pool.x[batch.numpy()]), torch.from_numpy(held.pool.y[batch.numpy()])
                optimiser.zero_grad()
                net.objective.mean_loss(first(x), y, None, many=False).backward()
                optimiser.step()
            ends.append({name: leaf.clone() for name, leaf in first.state_dict().items()})
        for name in start:
            torch.stack([end[name] for end in ends]).mean(0)

    return once


def main(clients: Annotated[int, typer.Option(min=1)] = 20, repeats: Annotated[int, typer.Option(min=1)] = 5) -> None:
    """Print a line for each network and kind of rows."""
    torch.set_num_threads(1)
    table = Table(box=None, pad_edge=False)
    for header in ("network", "rows", "side by side, s", "one by one, s", "plain loop, s", "times as fast as the loop"):
        table.add_column(header)
    for name in ("gru", "tcn"):
        for rows, net in (("series", build(name, (24, 11), Regress(3))),
                          ("texts", build(name, (PLACES,), NextToken(VOCABULARY, PLACES), tokens=True))):
            held = people(net, clients)
            ways = [simulated(net, held, True), simulated(net, held, False), looped(net, held)]
            took: list[list[float]] = [[], [], []]
            for turn in range(repeats + 1):
                for way, spent in zip(ways, took, strict=True):
                    begun = time.perf_counter()
                    way()
                    spent += [time.perf_counter() - begun] if turn else []
            medians = [statistics.median(spent) for spent in took]
            table.add_row(name, rows, *(f"{median:.2f}" for median in medians), f"{medians[2] / medians[0]:.1f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
