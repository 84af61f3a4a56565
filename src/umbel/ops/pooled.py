"""Convolution, ReLU and 2x2 max pooling as one operation: the block that small networks for images are made of.

Torch runs a stack of small convolutions as one grouped convolution, which its libraries do slowly, with layout changes
around it. On a GPU, Triton kernels (`pooled_triton.py`) compute bias, ReLU and pooling in the same pass, in strict
float32, and go backwards through the one pixel of each window that won.

Stacked shapes: x (K, B, C, H, W), weight (K, O, C, R, R), bias (K, O) -> y (K, B, O, P, Q) with P = (H - R + 1) // 2.
`winner` (K, B, O, P, Q) is the place of the largest value in its window, 0 to 3, or 4 where ReLU made it zero.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad, relu

from umbel.ops.updates import stacked

DEAD = 4
LANES = 16  # floats that one instruction of a processor multiplies


def pooled_conv(x: Tensor, weight: Tensor, bias: Tensor, many: bool = False) -> Tensor:
    """max_pool2d(relu(conv2d(x, weight, bias)), 2); `many`: it stands inside a vmap over clients."""
    if many and x.is_cuda:
        y: Tensor = _Pooled.apply(x, weight, bias)[0]  # type: ignore[no-untyped-call]
        return y
    if x.is_cpu and not many and x.shape[1] > 1 and len(weight) <= LANES // 2:
        return relu(max_pool2d(_in_pairs(x, weight), 2) + bias[:, None, None])
    return relu(max_pool2d(conv2d(x, weight, bias), 2))  # the same, the ReLU on a quarter of the numbers


def _in_pairs(x: Tensor, weight: Tensor) -> Tensor:
    """conv2d(x, weight) up to the last even column, computed as half as many pixels of twice the channels.

    A processor multiplies for sixteen channels at once, however few there are. With channels last, (b, H, Q, 2 O) and
    (b, H, 2 Q, O) are the same memory.
    """
    left_and_right = torch.stack([pad(weight, (0, 1)), pad(weight, (1, 0))]).flatten(0, 1)  # (2 O, C, R, R + 1)
    y = conv2d(x, left_and_right, stride=(1, 2)).permute(0, 2, 3, 1)
    return y.reshape(*y.shape[:2], 2 * y.shape[2], len(weight)).permute(0, 3, 1, 2)


class _Pooled(torch.autograd.Function):
    """Forwards. Returns the winners too, for the way back."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        y, winner = forward(x[None], weight[None], bias[None])
        return y[0], winner[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # no zeros for the winners' slope
        ctx.save_for_backward(*inputs[:2], output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: None) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight, winner = ctx.saved_tensors
        for_weight, for_bias = _Weights.apply(slope, winner, x, weight.shape[-1])  # type: ignore[no-untyped-call]
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = _Input.apply(slope, winner, weight, x.shape[-2], x.shape[-1])  # type: ignore[no-untyped-call]
        return for_x, for_weight, for_bias

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> tuple[Any, Any]:
        return forward(*stacked(info, in_dims, tensors)), (0, 0)


class _OneWay(torch.autograd.Function):
    """What is computed on the way back is not differentiated again."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        raise NotImplementedError("Second derivatives of a pooled convolution: take the loop engine.")


class _Weights(_OneWay):
    """Slopes of weight and bias."""

    @staticmethod
    def forward(slope: Tensor, winner: Tensor, x: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        for_weight, for_bias = backward_weights(slope[None], winner[None], x[None], reach)
        return for_weight[0], for_bias[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, slope: Tensor, winner: Tensor, x: Tensor, reach: int) -> tuple[Any, Any]:
        slope, winner, x = stacked(info, in_dims[:3], (slope, winner, x))
        return backward_weights(slope, winner, x, reach), (0, 0)


class _Input(_OneWay):
    """Slope of the images."""

    @staticmethod
    def forward(slope: Tensor, winner: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
        return backward_input(slope[None], winner[None], weight[None], height, width)[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, slope: Tensor, winner: Tensor, weight: Tensor, height: int, width: int) -> Any:
        slope, winner, weight = stacked(info, in_dims[:3], (slope, winner, weight))
        return backward_input(slope, winner, weight, height, width), 0


# Stacked computations: Triton on a GPU, plain torch elsewhere (the reference that the kernels are compared with) -----


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """y and the winners."""
    if x.is_cuda:
        from umbel.ops import pooled_triton

        return pooled_triton.forward(x, weight, bias)
    values = torch.vmap(conv2d)(x, weight, bias)
    down, across = (side // 2 for side in values.shape[-2:])
    windows = values[..., : 2 * down, : 2 * across].reshape(*values.shape[:-2], down, 2, across, 2)
    best, winner = windows.movedim(-3, -2).flatten(-2).max(-1)
    return relu(best), torch.where(best <= 0, DEAD, winner).to(torch.uint8)


def backward_weights(slope: Tensor, winner: Tensor, x: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """Slopes of weight (K, O, C, R, R) and bias (K, O)."""
    if x.is_cuda:
        from umbel.ops import pooled_triton

        return pooled_triton.backward_weights(slope, winner, x, reach)
    full = spread(slope, winner, x.shape[-2] - reach + 1, x.shape[-1] - reach + 1)
    patches = x.unfold(3, reach, 1).unfold(4, reach, 1)  # (K, B, C, H', W', R, R)
    return torch.einsum("kbohw,kbchwij->kocij", full, patches), full.sum((1, 3, 4))


def backward_input(slope: Tensor, winner: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """Slope of x (K, B, C, H, W)."""
    if slope.is_cuda:
        from umbel.ops import pooled_triton

        return pooled_triton.backward_input(slope, winner, weight, height, width)
    reach = weight.shape[-1]
    full = spread(slope, winner, height - reach + 1, width - reach + 1)
    return torch.vmap(torch.nn.functional.conv_transpose2d)(full, weight)


def spread(slope: Tensor, winner: Tensor, height: int, width: int) -> Tensor:
    """Slopes of pooled values put back where the winners were, (K, B, O, H', W'), zero elsewhere."""
    down, across = slope.shape[-2:]
    places = torch.arange(4, device=slope.device)
    windows = torch.where(winner[..., None] == places, slope[..., None], 0.0).view(*slope.shape, 2, 2)
    full = slope.new_zeros(*slope.shape[:-2], height, width)
    full[..., : 2 * down, : 2 * across] = windows.movedim(-3, -2).flatten(-4, -3).flatten(-2)
    return full
