"""A trained network to take away: a plain module that scales its inputs itself."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from umbel.nets.model import Model
from umbel.nets.objective import Regress
from umbel.tree import Params


class Standalone(nn.Module):
    """Images as they are, uint8 or in [0, 1], (rows, channels, height, width) -> (rows, classes).

    Numbers and tokens go in as they are, too; numbers to be predicted come out in the target's own unit. Its state_dict
    holds the weights under `network.`, the normalisation as `mean` and `std`, and `scale` and `centre` of a regression.
    """

    mean: Tensor
    std: Tensor
    scale: Tensor
    centre: Tensor

    def __init__(self, net: Model, params: Params) -> None:
        super().__init__()
        self.network = copy.deepcopy(net.module).to("cpu")  # with what is frozen
        for name, leaf in self.network.named_parameters():
            leaf.requires_grad_(name in net.trained)
        missing, unexpected = self.network.load_state_dict(params, strict=False)
        assert not unexpected and not set(missing) & set(net.shapes), (missing, unexpected)  # noqa: PT018
        self.register_buffer("mean", net.mean.detach().cpu().clone())
        self.register_buffer("std", net.std.detach().cpu().clone())
        self.tokens = net.tokens
        self.regresses = isinstance(net.objective, Regress)
        if isinstance(net.objective, Regress):
            self.register_buffer("scale", torch.tensor(net.objective.scale))
            self.register_buffer("centre", torch.tensor(net.objective.centre))
        self.train(False)

    def forward(self, x: Tensor) -> Any:
        """Scale as in training, then the network; what a regression puts out is scaled back."""
        if self.tokens:
            return self.network(x)
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        out = self.network((x - self.mean) / self.std)
        return out * self.scale + self.centre if self.regresses else out
