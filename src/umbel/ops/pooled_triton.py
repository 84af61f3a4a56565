"""Triton kernels of `pooled.py`. One warp owns 32 places and a few channels: no shared memory, no atomics, so that
results are the same in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

CHANNELS = 4  # output channels of one program: enough programs to fill the GPU with 20 clients


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """y and the winners; see `pooled.forward`."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    k, b, c, h, w = x.shape
    o, r = weight.shape[1], weight.shape[-1]
    p, q = (h - r + 1) // 2, (w - r + 1) // 2
    y = x.new_empty(k, b, o, p, q)
    winner = torch.empty(k, b, o, p, q, dtype=torch.uint8, device=x.device)
    grid = (k * b, triton.cdiv(p * q, 32), triton.cdiv(o, CHANNELS))
    _forward[grid](x, weight, bias, y, winner, b, c, h, w, o, r, p, q, CHANNELS, 32, num_warps=1)
    return y, winner


def backward_weights(slope: Tensor, winner: Tensor, x: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """Slopes of weight and bias; see `pooled.backward_weights`."""
    slope, winner, x = slope.contiguous(), winner.contiguous(), x.contiguous()
    k, b, c, h, w = x.shape
    o, p, q = slope.shape[2:]
    for_weight, for_bias = x.new_empty(k, o, c, reach, reach), x.new_empty(k, o)
    taps, windows = triton.next_power_of_2(reach * reach), min(256, triton.next_power_of_2(b * p * q))
    _backward_weights[(k, o, c)](slope, winner, x, for_weight, for_bias, b, c, h, w, o, reach, p, q, taps, windows,
                                 num_warps=8)
    return for_weight, for_bias


def backward_input(slope: Tensor, winner: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """Slope of x; see `pooled.backward_input`."""
    slope, winner, weight = slope.contiguous(), winner.contiguous(), weight.contiguous()
    k, b, o, p, q = slope.shape
    c, r = weight.shape[2], weight.shape[-1]
    for_x = slope.new_empty(k, b, c, height, width)
    grid = (k * b, triton.cdiv(height * width, 32), triton.cdiv(c, 8))
    _backward_input[grid](slope, winner, weight, for_x, b, c, height, width, o, r, p, q, 8, 32,
                          4 if o % 4 == 0 else 1, num_warps=1)
    return for_x


@triton.jit
def _forward(x, weight, bias, y, winner, images, C: constexpr, H: constexpr, W: constexpr,  # type: ignore[no-untyped-def]
             O: constexpr, R: constexpr, P: constexpr, Q: constexpr, OUT: constexpr, PLACES: constexpr):  # noqa: E741
    image = tl.program_id(0)  # client * images + image
    place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)  # in the pooled picture
    out = tl.program_id(2) * OUT + tl.arange(0, OUT)
    inside, real = place < P * Q, out < O
    corner = x + image * C * H * W + (place // Q) * 2 * W + (place % Q) * 2  # upper left pixel of the window's patch
    kernel = weight + ((image // images) * O + out) * C * R * R
    start = tl.load(bias + (image // images) * O + out, mask=real, other=0.0)[:, None]
    v0 = start + tl.zeros([OUT, PLACES], tl.float32)  # the four values of each window
    v1, v2, v3 = v0, v0, v0
    for c in range(C):
        for i in range(R):
            for j in tl.static_range(R):
                pixel = corner + c * H * W + i * W + j
                tap = tl.load(kernel + (c * R + i) * R + j, mask=real, other=0.0)[:, None]
                v0 += tap * tl.load(pixel, mask=inside, other=0.0)[None, :]
                v1 += tap * tl.load(pixel + 1, mask=inside, other=0.0)[None, :]
                v2 += tap * tl.load(pixel + W, mask=inside, other=0.0)[None, :]
                v3 += tap * tl.load(pixel + W + 1, mask=inside, other=0.0)[None, :]
    best, which = v0, tl.zeros([OUT, PLACES], tl.int32)
    wins = (v1 > best) | (v1 != v1)  # the first of equals wins, as in torch; NaN wins over everything
    best, which = tl.where(wins, v1, best), tl.where(wins, 1, which)
    wins = (v2 > best) | (v2 != v2)
    best, which = tl.where(wins, v2, best), tl.where(wins, 2, which)
    wins = (v3 > best) | (v3 != v3)
    best, which = tl.where(wins, v3, best), tl.where(wins, 3, which)
    dead = best <= 0
    to = (image * O + out)[:, None] * (P * Q) + place[None, :]
    written = real[:, None] & inside[None, :]
    tl.store(y + to, tl.where(dead, 0.0, best), mask=written)
    tl.store(winner + to, tl.where(dead, 4, which).to(tl.uint8), mask=written)


@triton.jit
def _backward_weights(slope, winner, x, for_weight, for_bias, images, C: constexpr, H: constexpr, W: constexpr,  # type: ignore[no-untyped-def]
                      O: constexpr, R: constexpr, P: constexpr, Q: constexpr, TAPS: constexpr, PLACES: constexpr):  # noqa: E741
    client, o, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tap = tl.arange(0, TAPS)
    real = tap < R * R
    shift = (tap // R) * W + tap % R
    weights = tl.zeros([TAPS, PLACES], tl.float32)
    bias = tl.zeros([PLACES], tl.float32)
    for start in range(0, images * P * Q, PLACES):  # all windows of all images of the client
        window = start + tl.arange(0, PLACES)
        image, place = client * images + window // (P * Q), window % (P * Q)
        at = (image * O + o) * (P * Q) + place
        won = tl.load(winner + at, mask=window < images * P * Q, other=4).to(tl.int32)
        live = won < 4
        g = tl.load(slope + at, mask=live, other=0.0)
        pixel = (image * C + c) * (H * W) + ((place // Q) * 2 + won // 2) * W + (place % Q) * 2 + won % 2
        pixels = tl.load(x + pixel[None, :] + shift[:, None], mask=live[None, :] & real[:, None], other=0.0)
        weights += pixels * g[None, :]
        bias += g
    tl.store(for_weight + ((client * O + o) * C + c) * R * R + tap, tl.sum(weights, 1), mask=real)
    if c == 0:
        tl.store(for_bias + client * O + o, tl.sum(bias, 0))


@triton.jit
def _backward_input(slope, winner, weight, for_x, images, C: constexpr, H: constexpr, W: constexpr,  # type: ignore[no-untyped-def]
                    O: constexpr, R: constexpr, P: constexpr, Q: constexpr, IN: constexpr, PIXELS: constexpr,
                    GROUP: constexpr):
    image = tl.program_id(0)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(2) * IN + tl.arange(0, IN)
    down, across = pixel // W, pixel % W
    total = tl.zeros([IN, PIXELS], tl.float32)
    kernel = weight + (image // images) * (O * C * R * R) + c * R * R
    for up in range(R // 2 + 1):  # windows whose winner may have looked at the pixel: those just above and left
        for left in range(R // 2 + 1):
            p, q = down // 2 - up, across // 2 - left
            seen = (p >= 0) & (p < P) & (q >= 0) & (q < Q) & (pixel < H * W)
            at = image * (O * P * Q) + p * Q + q
            for o0 in range(0, O, GROUP):
                for d in tl.static_range(GROUP):
                    o = o0 + d
                    won = tl.load(winner + at + o * P * Q, mask=seen, other=4).to(tl.int32)
                    g = tl.load(slope + at + o * P * Q, mask=seen, other=0.0)
                    i, j = down - 2 * p - won // 2, across - 2 * q - won % 2  # the tap that looked at it
                    looked = seen & (won < 4) & (i >= 0) & (i < R) & (j >= 0) & (j < R)
                    tap = tl.load(kernel[:, None] + (o * C * R * R + i * R + j)[None, :],
                                  mask=(c < C)[:, None] & looked[None, :], other=0.0)
                    total += tap * tl.where(looked, g, 0.0)[None, :]
    to = (image * C + c)[:, None] * (H * W) + pixel[None, :]
    tl.store(for_x + to, total, mask=(c < C)[:, None] & (pixel < H * W)[None, :])
