"""Triton kernels of `updates.py`: up to 16 stacked tensors in one launch, in blocks small enough to fill a GPU.

Torch's own multi-tensor kernels give a block 65,536 numbers: a model of 60,000 then keeps a handful of 132 processors
busy. All tensors are contiguous float32 of shape (clients, ...).
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

TENSORS_AT_ONCE = 16  # in one launch
NUMBERS_AT_ONCE = 2048  # of one tensor, in one program
Leaves = Sequence[Tensor]


def add(a: Leaves, b: Leaves, scale: float | Tensor, sign: int = 1) -> tuple[Tensor, ...]:
    """a + sign * scale * b. A scale that is a 0-d tensor on the GPU is read by the kernel itself."""
    out = tuple(torch.empty_like(leaf) for leaf in a)
    for part, clients, sizes, grid in _launches(out):
        _add[grid](tuple(out[part]), tuple(a[part]), tuple(b[part]), clients, scale, sign, isinstance(scale, Tensor),
                   sizes, len(sizes), NUMBERS_AT_ONCE)
    return out


def sgd(weights: Leaves, velocity: Leaves, slopes: Leaves, lr: float | Tensor, momentum: float) -> None:
    """Write new weights and velocities over the old: three arrays stay in a GPU's cache where five would not."""
    for part, clients, sizes, grid in _launches(weights):
        _sgd[grid](tuple(weights[part]), tuple(velocity[part]), tuple(slopes[part]), clients, lr, momentum,
                   isinstance(lr, Tensor), sizes, len(sizes), NUMBERS_AT_ONCE)


def _launches(out: Leaves) -> list[tuple[slice, int, tuple[int, ...], tuple[int, int]]]:
    """Which tensors, how many clients, numbers of one client in each, grid: only its first axis may pass 65,535."""
    launches = []
    for start in range(0, len(out), TENSORS_AT_ONCE):
        part = slice(start, start + TENSORS_AT_ONCE)
        clients, sizes = len(out[start]), tuple(leaf[0].numel() for leaf in out[part])
        grid = triton.cdiv(clients * max(sizes), NUMBERS_AT_ONCE), len(sizes)
        launches.append((part, clients, sizes, grid))
    return launches


@triton.jit(do_not_specialize=["clients"])  # sizes of one client are constants: no width compiles anew
def _add(out, a, b, clients, scale, SIGN: constexpr, READ: constexpr, SIZES: constexpr, N: constexpr,
         NUMBERS: constexpr):
    which = tl.program_id(1)
    factor = tl.load(scale).to(tl.float32) * SIGN if READ else scale * SIGN  # decided when it is compiled
    at = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    for k in tl.static_range(N):
        if which == k:
            inside = at < clients * SIZES[k]
            value = tl.load(a[k] + at, mask=inside) + factor * tl.load(b[k] + at, mask=inside)
            tl.store(out[k] + at, value, mask=inside)


@triton.jit(do_not_specialize=["clients"])
def _sgd(weights, velocity, slopes, clients, lr, momentum, READ: constexpr, SIZES: constexpr, N: constexpr,
         NUMBERS: constexpr):
    which = tl.program_id(1)
    rate = tl.load(lr).to(tl.float32) if READ else lr
    at = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    for k in tl.static_range(N):
        if which == k:
            inside = at < clients * SIZES[k]
            speed = tl.load(slopes[k] + at, mask=inside) + momentum * tl.load(velocity[k] + at, mask=inside)
            tl.store(velocity[k] + at, speed, mask=inside)
            tl.store(weights[k] + at, tl.load(weights[k] + at, mask=inside) - rate * speed, mask=inside)
