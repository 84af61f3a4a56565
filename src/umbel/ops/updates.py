"""Arithmetic on all parameters of a model at once: one kernel instead of one a tensor."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Leaves = Sequence[Tensor]
Scale = float | Tensor  # a number, or a 0-d tensor, which a CUDA graph reads anew whenever it is replayed


def sums(a: Leaves, b: Leaves, scale: Scale = 1.0, sign: int = 1) -> list[Tensor]:
    """a + sign * scale * b, pair by pair. The sign stands apart: to negate a tensor would be one more kernel."""
    if len(a) > 1 and a[0].is_cuda:
        return list(_Sums.apply(scale, sign, *a, *b))  # type: ignore[no-untyped-call]
    return _plainly(a, b, scale, sign)


def _plainly(a: Leaves, b: Leaves, scale: Scale, sign: int = 1) -> list[Tensor]:
    """With one rounding of the product and the sum wherever torch has an operation for it."""
    if isinstance(scale, Tensor):
        return [torch.addcmul(left, right, scale, value=sign) for left, right in zip(a, b, strict=True)]
    return [torch.add(left, right, alpha=sign * scale) for left, right in zip(a, b, strict=True)]


def sgd(weights: Leaves, velocity: Leaves, slopes: Leaves, lr: Scale, momentum: float) -> tuple[Leaves, Leaves]:
    """v <- momentum * v + g;  w <- w - lr * v. Returns w and v, which may have been written over."""
    if not weights[0].is_cuda:
        velocity = sums(slopes, velocity, momentum)
        return sums(weights, velocity, lr, -1), velocity
    after = _SGD.apply(lr, momentum, *weights, *velocity, *slopes)  # type: ignore[no-untyped-call]
    return after[: len(weights)], after[len(weights) :]


class _Update(torch.autograd.Function):
    """Updates are not differentiated."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)


class _Sums(_Update):
    @staticmethod
    def forward(scale: Scale, sign: int, *pairs: Tensor) -> tuple[Tensor, ...]:
        half = len(pairs) // 2
        if isinstance(scale, Tensor):
            return tuple(_plainly(pairs[:half], pairs[half:], scale, sign))
        return tuple(torch._foreach_add(pairs[:half], pairs[half:], alpha=sign * scale))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], scale: Scale, sign: int, *pairs: Tensor) -> tuple[Any, Any]:
        half = len(pairs) // 2
        if in_dims[0] is not None:  # a scale of each client's own
            return torch.vmap(_Sums.forward, in_dims)(scale, sign, *pairs), (0,) * half
        full = [leaf.contiguous() for leaf in stacked(info, in_dims[2:], pairs)]
        if not _plain(full):
            return _Sums.forward(scale, sign, *full), (0,) * half
        from umbel.ops import updates_triton

        return updates_triton.add(full[:half], full[half:], scale, sign), (0,) * half


class _SGD(_Update):
    @staticmethod
    def forward(lr: Scale, momentum: float, *leaves: Tensor) -> tuple[Tensor, ...]:
        weights, velocity, slopes = _thirds(leaves)
        speed = _Sums.forward(momentum, 1, *slopes, *velocity)
        return (*_Sums.forward(lr, -1, *weights, *speed), *speed)

    @staticmethod
    def vmap(info: Any, in_dims: Any, lr: Scale, momentum: float, *leaves: Tensor) -> tuple[Any, Any]:
        out_dims = (0,) * (len(leaves) // 3 * 2)
        if in_dims[0] is not None:
            return torch.vmap(_SGD.forward, in_dims)(lr, momentum, *leaves), out_dims
        full = [leaf.contiguous() for leaf in stacked(info, in_dims[2:], leaves)]
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
