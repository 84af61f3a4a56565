"""A network while it learns: its BatchNorm layers go by the batch and note running statistics, its dropout layers drop.

Both are pure. Statistics come in with the parameters and go out beside the gradient; a mask is a function of a key that
comes with the batch. So a step is the same for one client and for many under vmap, with padding and without.
"""

import copy
from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from umbel.tree import Params

Norm = nn.modules.batchnorm._BatchNorm
WHOLE_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # these drop channels, nn.Dropout single numbers
WORD = 2**32


def norms(module: nn.Module) -> dict[str, Norm]:
    """BatchNorm layers by path."""
    return {path: layer for path, layer in module.named_modules() if isinstance(layer, Norm)}


def dropouts(module: nn.Module) -> dict[str, nn.Module]:
    """Dropout layers by path, as far as they drop anything."""
    return {path: layer for path, layer in module.named_modules()
            if isinstance(layer, (nn.Dropout, *WHOLE_CHANNELS)) and layer.p}


def statistics_of(path: str) -> tuple[str, str]:
    """Names of the running statistics of the BatchNorm layer at `path`."""
    return f"{path}.running_mean", f"{path}.running_var"


class Learner:
    """A copy of a network whose BatchNorm and dropout layers behave as in training; all others as in evaluation.

    `still` are BatchNorm layers that stay as in evaluation. `functional`: to be called under `torch.func`.
    """

    def __init__(self, module: nn.Module, still: frozenset[str], functional: bool) -> None:
        self.module = copy.deepcopy(module)
        self.functional = functional
        self.plain = not (norms(module) or dropouts(module))  # nothing in it behaves otherwise in training
        self.begin(None, None, adapt=False)
        for path, layer in norms(self.module).items():
            if path not in still:
                layer.forward = partial(self._normalise, path, layer)  # type: ignore[method-assign]
            elif functional:  # torch's own has no rule for statistics that clients share
                layer.forward = partial(_standing, layer)  # type: ignore[method-assign]
        for dropout in dropouts(self.module).values():
            dropout.forward = partial(self._drop, dropout)

    def begin(self, live: Tensor | None, key: Tensor | None, adapt: bool) -> None:
        """Before a pass: which rows are no padding, the key of the masks, whether statistics follow the batch."""
        self.live, self.key, self.adapt = live, key, adapt
        self.drawn = 0  # masks of this pass
        self.statistics: Params = {}  # as the layers leave them

    def _normalise(self, path: str, layer: Norm, x: Tensor) -> Tensor:
        """By mean and variance of the live rows; by the running ones where there is but one value a channel."""
        running = _running(layer)
        values = x.numel() // x.shape[1]  # of a channel, padding included
        if running and (not self.adapt or values < 2):
            return _standing(layer, x)
        # A layer that is passed twice in one call goes on from the statistics that it left.
        before = [self.statistics.get(name, leaf) for name, leaf in zip(statistics_of(path), running, strict=False)]
        if self.functional or self.live is not None or values < 2:
            out, after = _masked(layer, x, self.live, before)
        else:
            after = [leaf.clone() for leaf in before]  # torch writes over them
            mean, variance = after or (None, None)
            out = batch_norm(x, mean, variance, layer.weight, layer.bias, True, layer.momentum or 0.0, layer.eps)
        self.statistics |= dict(zip(statistics_of(path), after, strict=False))
        return out

    def _drop(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Keep a share 1 - p of the numbers, or of the channels, and scale them up by 1 / (1 - p)."""
        number = self.drawn  # the layer's turn in this pass: one that is passed twice draws twice
        self.drawn += 1
        if self.key is None:
            return x
        share: float = layer.p  # type: ignore[assignment]
        if share == 1:
            return torch.zeros_like(x)
        shape = x.shape[:2] if isinstance(layer, WHOLE_CHANNELS) else x.shape
        kept = noise(self.key, number, shape) >= round(share * WORD)
        return x * (kept.to(x.dtype) / (1 - share)).view(*shape, *[1] * (x.dim() - len(shape)))


def _running(layer: Norm) -> list[Tensor]:
    """Mean and variance as they ran so far; empty where the layer does not track them."""
    mean, variance = layer.running_mean, layer.running_var
    return [] if mean is None or variance is None else [mean, variance]


def _standing(layer: Norm, x: Tensor) -> Tensor:
    """As in evaluation: by the running statistics."""
    return _scaled(layer, x, *_running(layer))


def _masked(layer: Norm, x: Tensor, live: Tensor | None, before: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """x normalised by its live rows, and the statistics after it."""
    axes = [0, *range(2, x.dim())]
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    live = torch.ones(len(x), dtype=torch.bool, device=x.device) if live is None else live
    padding = ~live.view(-1, *[1] * (x.dim() - 1))
    count = live.sum() * prod(x.shape[2:])
    mean = wide.masked_fill(padding, 0).sum(axes) / count.clamp(min=1)
    squares = (wide - _beside(mean, x)).masked_fill(padding, 0).square().sum(axes)
    variance = squares / count.clamp(min=1)
    if not before:
        return _scaled(layer, x, mean, variance), []
    enough, share = count > 1, layer.momentum
    assert share is not None  # refused by `wrap`
    unbiased = squares / (count - 1).clamp(min=1)
    after = [torch.where(enough, (1 - share) * old + share * new.detach(), old)
             for old, new in zip(before, (mean, unbiased), strict=True)]
    used = [torch.where(enough, own, running)
            for own, running in zip((mean, variance), _running(layer), strict=True)]
    return _scaled(layer, x, *used), after


def _scaled(layer: Norm, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    scale = torch.rsqrt(variance + layer.eps)
    if layer.affine:
        scale = scale * layer.weight
    out = (x - _beside(mean, x)) * _beside(scale, x)
    return (out + _beside(layer.bias, x) if layer.affine else out).to(x.dtype)


def _beside(channels: Tensor, x: Tensor) -> Tensor:
    """(channels,) as it is added to x (rows, channels, ...)."""
    return channels.view(1, -1, *[1] * (x.dim() - 2))


def noise(key: Tensor, number: int, shape: torch.Size) -> Tensor:
    """Whole numbers, uniform below 2^32: a pure function of the key (0-d int64), a number and the place in `shape`.

    The first axis is the slowest, so that rows behind the last one change nothing before them. Every product is below
    2^63, so that integers of 64 bits are exact and alike on every device.
    """
    place = torch.arange(prod(shape), device=key.device).view(shape)
    low, high = _mixed(key & (WORD - 1)), _mixed(((key >> 32) + 0x1E3779B1 * (number + 1)) & (WORD - 1))
    return _mixed((_mixed((place & (WORD - 1)) ^ low) + high) & (WORD - 1))


def _mixed(word: Tensor) -> Tensor:
    """A one-to-one mix of numbers below 2^32, in which every bit in moves every bit out."""
    word = (word ^ (word >> 16)) * 0x21F0AAAD & (WORD - 1)
    word = (word ^ (word >> 15)) * 0x735A2D97 & (WORD - 1)
    return word ^ (word >> 15)
