"""Two ways to the gradient of a loss at parameters that come from elsewhere: for many clients at once, and for one.

Both take the loss as a function of the network, which they call with the parameters put into it.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from umbel.tree import Params

Network: TypeAlias = Callable[[Tensor], Tensor]
Loss: TypeAlias = Callable[[Network], Tensor]


def functional(module: nn.Module, params: Params, names: Sequence[str], loss: Loss,
               noted: Callable[[], Params]) -> tuple[Params, Params]:
    """By `torch.func`, the only way that vmaps; for one client, `Borrower` costs half as much.

    `noted` is asked after the forward pass: what the network leaves beside its output.
    """
    def at(leaves: Params) -> tuple[Tensor, Params]:
        return loss(lambda x: functional_call(module, {**params, **leaves}, (x,))), noted()

    slope, notes = grad(at, has_aux=True)({name: params[name] for name in names})
    return slope, notes


class Borrower:
    """By autograd, on a module of its own that borrows parameters and statistics for the time of a call."""

    def __init__(self, module: nn.Module, trained: Sequence[str]) -> None:
        self.module = module
        self.weights: Params = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name in trained:
            self.weights[name].requires_grad_(True)

    def slopes(self, params: Params, names: Sequence[str], loss: Loss) -> Sequence[Tensor]:
        """One for each of `names`, in that order."""
        for name, leaf in params.items():
            self.weights[name].data = leaf
        with torch.enable_grad():
            value = loss(self.module)
        return torch.autograd.grad(value, [self.weights[name] for name in names])
