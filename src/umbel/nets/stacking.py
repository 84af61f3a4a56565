"""What it takes to train stacked clients with one call of a module: layers that vmap well, and memory."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from umbel.nets.networks import PooledConv2d
from umbel.nets.sequences import GRU, CausalConv1d
from umbel.ops import dense

# Numbers that a layer keeps for the way back, for each one that it puts out: four pixels before a pooling and the one
# after it; the places that a causal convolution sees; of a recurrent layer the gates, the states and their tanh; of
# BatchNorm differences, squares and masks; of dropout the mask, and the whole numbers of 64 bits it is drawn from.
KEPT: dict[type[nn.Module], int] = {PooledConv2d: 5, CausalConv1d: 5, GRU: 9, nn.LSTM: 7, nn.GRU: 5,
                                    nn.modules.batchnorm._BatchNorm: 5, nn.Dropout: 5}


def for_vmap(module: nn.Module) -> nn.Module:
    """A copy that computes the same function, to be called under `torch.vmap`."""
    module = copy.deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, PooledConv2d):
            layer.many = True
        elif type(layer) is nn.Linear:
            layer.forward = partial(_dense, layer)  # type: ignore[method-assign]
        elif isinstance(layer, nn.RNNBase) and not isinstance(layer, GRU):
            layer.forward = partial(_unfused, layer.forward)
    return module


def _dense(layer: nn.Linear, x: Tensor) -> Tensor:
    return dense(x, layer.weight, layer.bias)


def _unfused(forward: Any, *args: Any) -> Any:
    """A recurrent layer step by step: oneDNN's and cuDNN's whole layers have no rule for vmap.

    On a CPU torch has one for every operation of a step. On a GPU it computes the cell of an LSTM or GRU client by
    client, and warns of that itself; with cuDNN it would refuse.
    """
    with _without(torch.backends.mkldnn), _without(torch.backends.cudnn):
        return forward(*args)


@contextmanager
def _without(backend: Any) -> Iterator[None]:
    """Do not use a library of layers. (Its own `flags` sets other settings as well, and warns of some.)"""
    before, backend.enabled = backend.enabled, False
    try:
        yield
    finally:
        backend.enabled = before


def activations(module: nn.Module, x: Tensor) -> int:
    """How many numbers the layers keep for the input x: the measure of a step's memory."""
    counted = [0]
    hooks = [layer.register_forward_hook(lambda layer, _in, out: counted.append(_kept(layer, out)))
             for layer in module.modules() if not list(layer.children())]
    module(x)
    for hook in hooks:
        hook.remove()
    return sum(counted)


def _kept(layer: nn.Module, out: Any) -> int:
    """`out` may be a tuple, as that of a recurrent layer: its outputs, and its states at the end."""
    numbers = sum(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
    each = next((many for kind, many in KEPT.items() if isinstance(layer, kind)), 1)
    return numbers * each * (layer.num_layers if isinstance(layer, nn.RNNBase) else 1)
