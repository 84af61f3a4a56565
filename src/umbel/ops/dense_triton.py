"""Triton kernels of `dense.py`. Products follow torch's setting: strict float32, or TF32 where that is allowed."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (K, B, F), weight (K, N, F), bias (K, N) -> (K, B, N)."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    k, b, f = x.shape
    n = weight.shape[1]
    y = x.new_empty(k, b, n)
    rows = 16
    grid = (k, triton.cdiv(n, 16), triton.cdiv(b, rows))
    _forward[grid](x, weight, bias, y, b, f, n, _precision(), rows, 16, 128, num_warps=4)
    return y


def backward_weights(slope: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """slope (K, B, N), x (K, B, F) -> weight (K, N, F), bias (K, N)."""
    slope, x = slope.contiguous(), x.contiguous()
    k, b, f = x.shape
    n = slope.shape[2]
    for_weight, for_bias = x.new_empty(k, n, f), x.new_empty(k, n)
    grid = (k, triton.cdiv(n, 32), triton.cdiv(f, 64))
    _backward_weights[grid](slope, x, for_weight, for_bias, b, f, n, _precision(), 16, 32, 64, num_warps=4)
    return for_weight, for_bias


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


@triton.jit
def _forward(x, weight, bias, y, B: constexpr, F: constexpr, N: constexpr, PRECISION: constexpr,
             ROWS: constexpr, OUT: constexpr, DEEP: constexpr):
    client = tl.program_id(0)
    out = tl.program_id(1) * OUT + tl.arange(0, OUT)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, OUT], tl.float32)
    for start in range(0, F, DEEP):
        at = start + tl.arange(0, DEEP)
        left = tl.load(x + client * B * F + row[:, None] * F + at[None, :],
                       mask=(row < B)[:, None] & (at < F)[None, :], other=0.0)
        right = tl.load(weight + client * N * F + out[None, :] * F + at[:, None],
                        mask=(out < N)[None, :] & (at < F)[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    total += tl.load(bias + client * N + out, mask=out < N, other=0.0)[None, :]
    tl.store(y + client * B * N + row[:, None] * N + out[None, :], total, mask=(row < B)[:, None] & (out < N)[None, :])


@triton.jit
def _backward_weights(slope, x, for_weight, for_bias, B: constexpr, F: constexpr, N: constexpr,
                      PRECISION: constexpr, ROWS: constexpr, OUT: constexpr, DEEP: constexpr):
    client = tl.program_id(0)
    out = tl.program_id(1) * OUT + tl.arange(0, OUT)
    at = tl.program_id(2) * DEEP + tl.arange(0, DEEP)
    total = tl.zeros([OUT, DEEP], tl.float32)
    bias = tl.zeros([OUT], tl.float32)
    for start in range(0, B, ROWS):
        row = start + tl.arange(0, ROWS)
        g = tl.load(slope + client * B * N + row[None, :] * N + out[:, None],
                    mask=(row < B)[None, :] & (out < N)[:, None], other=0.0)
        inputs = tl.load(x + client * B * F + row[:, None] * F + at[None, :],
                         mask=(row < B)[:, None] & (at < F)[None, :], other=0.0)
        total = tl.dot(g, inputs, total, input_precision=PRECISION)
        bias += tl.sum(g, 1)
    tl.store(for_weight + client * N * F + out[:, None] * F + at[None, :], total,
             mask=(out < N)[:, None] & (at < F)[None, :])
    if tl.program_id(2) == 0:
        tl.store(for_bias + client * N + out, bias, mask=out < N)
