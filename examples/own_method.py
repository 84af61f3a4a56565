"""A method and a network of your own, run from the command line by file name.

    umbel run examples/own_method.py:Halves --model examples/own_method.py:net --scenario swap-6 --clients 6 --rounds 5
    umbel compare fedavg examples/own_method.py:Halves --scenario rotation-4 --clients 8 --tune lr=0.01,0.1

The run's recipe keeps the file's name and digest. Whoever goes on with it has not named the file, and says that it may
be imported: umbel run --resume --out runs/... --trust
"""

import math
from dataclasses import dataclass

from torch import nn

import umbel


@dataclass(frozen=True)
class Halves(umbel.FedAvg):
    """Federated averaging whose learning rate is halved every `every` rounds."""

    every: int = umbel.number(5, ge=1)

    name = "halves"

    def round(self, fed: umbel.Federation, state: umbel.State, cohort: umbel.Cohort) -> umbel.State:
        """FedAvg's, at this round's rate."""
        rate = self.local.lr * 0.5 ** (cohort.round // self.every)
        local = umbel.Local(**{**vars(self.local), "lr": rate})
        return umbel.FedAvg(local=local).round(fed, state, cohort)


def net(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network for inputs of any shape."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 32), nn.ReLU(), nn.Linear(32, outputs))
