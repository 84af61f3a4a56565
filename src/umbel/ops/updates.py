"""Arithmetic on all parameters of a model at once: one kernel instead of one a tensor."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Leaves = Sequence[Tensor]


def sums(a: Leaves, b: Leaves, scale: float | Tensor = 1.0) -> list[Tensor]:
    """a + scale * b, pair by pair."""
    if isinstance(scale, Tensor):
        return [left + scale * right for left, right in zip(a, b, strict=True)]
    if len(a) > 1 and a[0].is_cuda:
        return list(_Sums.apply(scale, *a, *b))  # type: ignore[no-untyped-call]
    return [torch.add(left, right, alpha=scale) for left, right in zip(a, b, strict=True)]


def sgd(weights: Leaves, velocity: Leaves, slopes: Leaves, lr: float, momentum: float) -> tuple[Leaves, Leaves]:
    """v <- momentum * v + g;  w <- w - lr * v. Returns w and v, which may have been written over."""
    if not weights[0].is_cuda:
        velocity = sums(slopes, velocity, momentum)
        return sums(weights, velocity, -lr), velocity
    after = _SGD.apply(lr, momentum, *weights, *velocity, *slopes)  # type: ignore[no-untyped-call]
    return after[: len(weights)], after[len(weights) :]


class _Update(torch.autograd.Function):
    """Updates are not differentiated."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)


class _Sums(_Update):
    @staticmethod
    def forward(scale: float, *pairs: Tensor) -> tuple[Tensor, ...]:
        half = len(pairs) // 2
        return tuple(torch._foreach_add(pairs[:half], pairs[half:], alpha=scale))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], scale: float, *pairs: Tensor) -> tuple[Any, Any]:
        full = [leaf.contiguous() for leaf in stacked(info, in_dims[1:], pairs)]
        half = len(full) // 2
        if not _plain(full):
            return _Sums.forward(scale, *full), (0,) * half
        from umbel.ops import updates_triton

        return updates_triton.add(full[:half], full[half:], scale), (0,) * half


class _SGD(_Update):
    @staticmethod
    def forward(lr: float, momentum: float, *leaves: Tensor) -> tuple[Tensor, ...]:
        weights, velocity, slopes = _thirds(leaves)
        speed = torch._foreach_add(list(slopes), list(velocity), alpha=momentum)
        return (*torch._foreach_add(list(weights), list(speed), alpha=-lr), *speed)

    @staticmethod
    def vmap(info: Any, in_dims: Any, lr: float, momentum: float, *leaves: Tensor) -> tuple[Any, Any]:
        full = [leaf.contiguous() for leaf in stacked(info, in_dims[2:], leaves)]
        out_dims = (0,) * (len(full) // 3 * 2)
        if not _plain(full):
            return _SGD.forward(lr, momentum, *full), out_dims
        from umbel.ops import updates_triton

        weights, velocity, slopes = _thirds(full)
        updates_triton.sgd(weights, velocity, slopes, lr, momentum)
        return (*weights, *velocity), out_dims


def _thirds(leaves: Leaves) -> tuple[Leaves, Leaves, Leaves]:
    n = len(leaves) // 3
    return leaves[:n], leaves[n : 2 * n], leaves[2 * n :]


def _plain(leaves: Leaves) -> bool:
    return all(leaf.dtype == torch.float32 and leaf.is_contiguous() for leaf in leaves)


def stacked(info: Any, in_dims: Sequence[int | None], tensors: Leaves) -> list[Tensor]:
    """Tensors of a vmap rule with the mapped axis in front, also those that are not mapped."""
    return [
        leaf.expand(info.batch_size, *leaf.shape) if dim is None else leaf.movedim(dim, 0)
        for leaf, dim in zip(tensors, in_dims, strict=True)
    ]
