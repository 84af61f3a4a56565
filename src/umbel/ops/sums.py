"""The update of a model's parameters, all of them in one kernel."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def sums(a: Sequence[Tensor], b: Sequence[Tensor], scale: float | Tensor = 1.0) -> list[Tensor]:
    """a + scale * b, pair by pair."""
    if isinstance(scale, Tensor):
        return [left + scale * right for left, right in zip(a, b, strict=True)]
    if len(a) > 1 and a[0].is_cuda:
        return list(_Sums.apply(scale, *a, *b))  # type: ignore[no-untyped-call]
    return [torch.add(left, right, alpha=scale) for left, right in zip(a, b, strict=True)]


class _Sums(torch.autograd.Function):
    """`_foreach_add` has no rule for vmap; this is one. Updates are not differentiated."""

    @staticmethod
    def forward(scale: float, *pairs: Tensor) -> tuple[Tensor, ...]:
        half = len(pairs) // 2
        return tuple(torch._foreach_add(pairs[:half], pairs[half:], alpha=scale))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], scale: float, *pairs: Tensor) -> tuple[Any, Any]:
        full = stacked(info, in_dims[1:], pairs)
        out = _Sums.apply(scale, *full)  # type: ignore[no-untyped-call]
        return out, (0,) * len(out)


def stacked(info: Any, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of a vmap rule with the mapped axis in front, also those that are not mapped."""
    return [
        leaf.expand(info.batch_size, *leaf.shape) if dim is None else leaf.movedim(dim, 0)
        for leaf, dim in zip(tensors, in_dims, strict=True)
    ]
