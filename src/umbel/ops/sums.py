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
        full = [leaf.contiguous() for leaf in stacked(info, in_dims[1:], pairs)]
        half = len(full) // 2
        if not _plain(full):
            return _Sums.forward(scale, *full), (0,) * half
        from umbel.ops import sums_triton

        out = tuple(torch.empty_like(leaf) for leaf in full[:half])
        sums_triton.add(out, full[:half], full[half:], scale)
        return out, (0,) * half


def copies(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Write stacked tensors over others."""
    fit = [k for k, pair in enumerate(zip(to, source, strict=True)) if _plain(pair)]
    if fit and to[0].is_cuda:
        from umbel.ops import sums_triton

        sums_triton.copy([to[k] for k in fit], [source[k] for k in fit])
    for k in set(range(len(to))) - set(fit if to[0].is_cuda else []):
        to[k].copy_(source[k])


def _plain(leaves: Sequence[Tensor]) -> bool:
    return all(leaf.dtype == torch.float32 and leaf.is_contiguous() for leaf in leaves)


def stacked(info: Any, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of a vmap rule with the mapped axis in front, also those that are not mapped."""
    return [
        leaf.expand(info.batch_size, *leaf.shape) if dim is None else leaf.movedim(dim, 0)
        for leaf, dim in zip(tensors, in_dims, strict=True)
    ]
