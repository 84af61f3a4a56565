"""The work that every engine is given, in nothing but torch: two networks as anybody would write them, random images.

One JSON argument says what to do: model, shape, clients, rows, batch, rounds, threads or workers. Every script here
prints one line of JSON: seconds of each round after the first, and the peak of resident memory in MB.
"""

import json
import math
import resource
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

LR, MOMENTUM = 0.01, 0.5


class LeNet5(nn.Module):
    """Two 5x5 convolutions, three linear layers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        side = ((shape[1] - 4) // 2 - 4) // 2
        self.conv1, self.conv2 = nn.Conv2d(shape[0], 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * side * side, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, channels, side, side) -> (b, 10)."""
        x = max_pool2d(relu(self.conv1(x)), 2)
        x = max_pool2d(relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(relu(self.fc2(relu(self.fc1(x)))))


def network(model: str, shape: list[int]) -> nn.Module:
    if model == "lenet5":
        return LeNet5(tuple(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 200), nn.ReLU(), nn.Linear(200, 10))


def images(shape: list[int], rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One client's rows."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (rows, *shape), generator=draw, dtype=torch.uint8).float() / 255
    return x, torch.randint(0, 10, (rows,), generator=draw)


def epoch(module: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> None:
    """One epoch of SGD, as plain as it can be: no DataLoader, slices of tensors."""
    optimiser = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    for rows in torch.randperm(len(y)).split(batch):
        optimiser.zero_grad()
        cross_entropy(module(x[rows]), y[rows]).backward()
        optimiser.step()


def asked() -> dict:
    return json.loads(sys.argv[1])


def tell(seconds: list[float]) -> None:
    """The first round warms up."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("\n" + json.dumps({"seconds": seconds[1:], "peak_mb": round(peak)}), flush=True)
