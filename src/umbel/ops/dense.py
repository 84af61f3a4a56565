"""A linear layer of stacked clients: one kernel forwards, two backwards, where torch needs three and four."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from umbel.ops.updates import stacked


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias for x (B, F), inside a vmap over clients."""
    strict = x.is_cuda and not torch.is_autocast_enabled("cuda")
    if strict and bias is not None and x.dim() == 2 and x.dtype == weight.dtype == torch.float32:
        y: Tensor = _Dense.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    return linear(x, weight, bias)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        for_weight, for_bias = _Weights.apply(slope, x)  # type: ignore[no-untyped-call]
        return slope @ weight if ctx.needs_input_grad[0] else None, for_weight, for_bias

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> tuple[Tensor, int]:
        x, weight, bias = stacked(info, in_dims, tensors)
        if not x.is_cuda:
            return torch.baddbmm(bias[:, None], x, weight.mT), 0
        from umbel.ops import dense_triton

        return dense_triton.forward(x, weight, bias), 0


class _Weights(torch.autograd.Function):
    """Slopes of weight and bias. Differentiable, since it is made of products."""

    @staticmethod
    def forward(slope: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return slope.T @ x, slope.sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, of_weight: Tensor, of_bias: Tensor) -> tuple[Tensor, Tensor]:
        slope, x = ctx.saved_tensors
        return x @ of_weight.T + of_bias, slope @ of_weight

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> tuple[Any, Any]:
        slope, x = stacked(info, in_dims, tensors)
        if not x.is_cuda:
            return (slope.mT @ x, slope.sum(1)), (0, 0)
        from umbel.ops import dense_triton

        return dense_triton.backward_weights(slope, x), (0, 0)
