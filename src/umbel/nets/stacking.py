"""What it takes to train stacked clients with one call of a module: layers that vmap well, and memory."""

import copy
from functools import partial

from torch import Tensor, nn

from umbel.nets.networks import PooledConv2d
from umbel.ops import dense


def for_vmap(module: nn.Module) -> nn.Module:
    """A copy that computes the same function, to be called under `torch.vmap`."""
    module = copy.deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, PooledConv2d):
            layer.many = True
        elif type(layer) is nn.Linear:
            layer.forward = partial(_dense, layer)  # type: ignore[method-assign]
    return module


def _dense(layer: nn.Linear, x: Tensor) -> Tensor:
    return dense(x, layer.weight, layer.bias)


def activations(module: nn.Module, x: Tensor) -> int:
    """How many numbers the layers put out for the input x: the measure of a step's memory."""
    counted = [0]
    hooks = [
        layer.register_forward_hook(
            lambda layer, _in, out: counted.append(out.numel() * (5 if isinstance(layer, PooledConv2d) else 1)))
        for layer in module.modules() if not list(layer.children())
    ]
    module(x)
    for hook in hooks:
        hook.remove()
    return sum(counted)
