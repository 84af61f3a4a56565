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
    x = x.contiguous()
    k, b, c, h, w = x.shape
    full = spread(slope, winner, h - reach + 1, w - reach + 1)
    o, u, v = full.shape[2:]
    parts = b if u * v >= 256 else 1  # large pictures: a program an image, then their sum
    for_weight, for_bias = x.new_empty(k, parts, o, c, reach, reach), x.new_empty(k, parts, o)
    grid = (k * parts, c, triton.cdiv(o, CHANNELS))
    _backward_weights[grid](full, x, for_weight, for_bias, b // parts, c, h, w, o, reach, u, v,
                            triton.next_power_of_2(reach * reach), CHANNELS, 32, num_warps=1)
    if parts == 1:
        return for_weight[:, 0], for_bias[:, 0]
    return for_weight.sum(1), for_bias.sum(1)


def backward_input(slope: Tensor, winner: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """Slope of x; see `pooled.backward_input`."""
    weight = weight.contiguous()
    k, b = slope.shape[:2]
    o, c, r = weight.shape[1], weight.shape[2], weight.shape[-1]
    full = spread(slope, winner, height - r + 1, width - r + 1)
    for_x = slope.new_empty(k, b, c, height, width)
    together = 2 if b % 2 == 0 else 1  # images that share the loads of a weight
    grid = (k * b // together, triton.cdiv(height * width, 32), triton.cdiv(c, 8))
    _backward_input[grid](full, weight, for_x, b, c, height, width, o, r, *full.shape[-2:], 8, together, 32,
                          num_warps=1)
    return for_x


def spread(slope: Tensor, winner: Tensor, height: int, width: int) -> Tensor:
    """Slopes put back where the winners were; see `pooled.spread`."""
    slope, winner = slope.contiguous(), winner.contiguous()
    full = slope.new_empty(*slope.shape[:-2], height, width)
    p, q = slope.shape[-2:]
    grid = (triton.cdiv(full.numel(), 1024),)
    _spread[grid](slope, winner, full, full.numel(), height, width, p, q, 1024)
    return full


@triton.jit
def _forward(x, weight, bias, y, winner, images, C: constexpr, H: constexpr, W: constexpr,
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


@triton.jit(do_not_specialize=["count"])
def _spread(slope, winner, full, count, U: constexpr, V: constexpr, P: constexpr, Q: constexpr, BLOCK: constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    picture, u, v = at // (U * V), at // V % U, at % V
    inside = (u // 2 < P) & (v // 2 < Q) & (at < count)
    window = picture * (P * Q) + (u // 2) * Q + v // 2
    won = tl.load(winner + window, mask=inside, other=4).to(tl.int32)
    g = tl.load(slope + window, mask=inside, other=0.0)
    tl.store(full + at, tl.where(won == (u % 2) * 2 + v % 2, g, 0.0), mask=at < count)


@triton.jit
def _backward_weights(full, x, for_weight, for_bias, images, C: constexpr, H: constexpr, W: constexpr,
                      O: constexpr, R: constexpr, U: constexpr, V: constexpr, TAPS: constexpr, OUT: constexpr,  # noqa: E741
                      PLACES: constexpr):
    part, c = tl.program_id(0), tl.program_id(1)
    out = tl.program_id(2) * OUT + tl.arange(0, OUT)
    tap = tl.arange(0, TAPS)
    shift = (tap // R) * W + tap % R
    weights = tl.zeros([OUT, TAPS, PLACES], tl.float32)  # a lane owns a place and sums up its own products
    bias = tl.zeros([OUT, PLACES], tl.float32)
    for image in range(images):
        picture = part * images + image
        for start in range(0, U * V, PLACES):
            place = start + tl.arange(0, PLACES)
            inside = place < U * V
            g = tl.load(full + (picture * O + out)[:, None] * (U * V) + place[None, :],
                        mask=(out < O)[:, None] & inside[None, :], other=0.0)
            pixel = (picture * C + c) * (H * W) + (place // V) * W + place % V
            pixels = tl.load(x + pixel[None, :] + shift[:, None],
                             mask=inside[None, :] & (tap < R * R)[:, None], other=0.0)
            weights += g[:, None, :] * pixels[None, :, :]
            bias += g
    to = for_weight + ((part * O + out) * C + c)[:, None] * (R * R) + tap[None, :]
    tl.store(to, tl.sum(weights, 2), mask=(out < O)[:, None] & (tap < R * R)[None, :])
    if c == 0:
        tl.store(for_bias + part * O + out, tl.sum(bias, 1), mask=out < O)


@triton.jit
def _backward_input(full, weight, for_x, images, C: constexpr, H: constexpr, W: constexpr,
                    O: constexpr, R: constexpr, U: constexpr, V: constexpr, IN: constexpr, IMAGES: constexpr,  # noqa: E741
                    PIXELS: constexpr):
    first = tl.program_id(0) * IMAGES
    picture = first + tl.arange(0, IMAGES)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(2) * IN + tl.arange(0, IN)
    down, across = pixel // W, pixel % W
    total = tl.zeros([IN, IMAGES, PIXELS], tl.float32)
    kernel = weight + (first // images) * (O * C * R * R) + c * R * R
    for o in range(O):
        for i in range(R):
            for j in tl.static_range(R):
                u, v = down - i, across - j  # where the tap (i, j) looked at this pixel from
                seen = (u >= 0) & (u < U) & (v >= 0) & (v < V) & (pixel < H * W)
                at = (picture * O + o)[:, None] * (U * V) + (u * V + v)[None, :]
                g = tl.load(full + at, mask=seen[None, :], other=0.0)
                tap = tl.load(kernel + o * C * R * R + i * R + j, mask=c < C, other=0.0)
                total += tap[:, None, None] * g[None, :, :]
    to = (picture[None, :] * C + c[:, None])[:, :, None] * (H * W) + pixel[None, None, :]
    tl.store(for_x + to, total, mask=(c < C)[:, None, None] & (pixel < H * W)[None, None, :])
