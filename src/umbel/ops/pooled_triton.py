"""Triton kernels of `pooled.py`. One warp owns 32 places and a few channels: no shared memory, no atomics, so that
results are the same in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

WARP = 32


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """y and the winners; see `pooled.forward`."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    k, b, c, h, w = x.shape
    o, r = weight.shape[1], weight.shape[-1]
    p, q = (h - r + 1) // 2, (w - r + 1) // 2
    y = x.new_empty(k, b, o, p, q)
    winner = torch.empty(k, b, o, p, q, dtype=torch.uint8, device=x.device)
    channels = 8 if o <= 8 else 4  # of one program: pixels are read once for all, but enough programs must be left
    grid = (k * b, triton.cdiv(p * q, WARP), triton.cdiv(o, channels))
    _forward[grid](x, weight, bias, y, winner, b, c, h, w, o, r, p, q, channels, WARP, num_warps=1)
    return y, winner


def backward_weights(slope: Tensor, winner: Tensor, x: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """Slopes of weight and bias; see `pooled.backward_weights`."""
    slope, winner, x = slope.contiguous(), winner.contiguous(), x.contiguous()
    k, b, c, h, w = x.shape
    o, p, q = slope.shape[2:]
    parts = b if p * q >= 2 * WARP else 1  # large pictures: a program an image, then their sum
    weights = k * o * c * reach * reach
    end = weights + -weights % 4  # biases behind the weights, where 16 bytes begin: one sum for both
    slopes = x.new_empty(parts, end + k * o)
    channels = 2
    grid = (k * parts, c, triton.cdiv(o, channels))
    _backward_weights[grid](slope, winner, x, slopes, end, slopes.shape[1], parts, b // parts, c, h, w, o, reach, p, q,
                            triton.next_power_of_2(reach * reach), channels, WARP, num_warps=1)
    total = slopes[0] if parts == 1 else slopes.sum(0)
    return total[:weights].view(k, o, c, reach, reach), total[end:].view(k, o)


def backward_input(slope: Tensor, winner: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """Slope of x; see `pooled.backward_input`."""
    weight = weight.contiguous()
    k, b = slope.shape[:2]
    o, c, r = weight.shape[1], weight.shape[2], weight.shape[-1]
    full = padded(slope, winner, height - r + 1, width - r + 1, r - 1)
    for_x = slope.new_empty(k, b, c, height, width)
    grid = (k * b, triton.cdiv(height * width, 2 * WARP), triton.cdiv(c, 8))
    _backward_input[grid](full, weight, for_x, b, c, height, width, o, r, 8, 2 * WARP, num_warps=1)
    return for_x


def padded(slope: Tensor, winner: Tensor, height: int, width: int, margin: int) -> Tensor:
    """Slopes put back where the winners were, as in `pooled.spread`, with zeros around the picture."""
    slope, winner = slope.contiguous(), winner.contiguous()
    full = slope.new_empty(*slope.shape[:-2], height + 2 * margin, width + 2 * margin)
    p, q = slope.shape[-2:]
    grid = (triton.cdiv(full.numel(), 1024),)
    _padded[grid](slope, winner, full, full.numel(), *full.shape[-2:], p, q, margin, 1024)
    return full


@triton.jit
def _some(ALL: constexpr, SOME: constexpr):
    """The channels of this program; known to the compiler where there is one program for all of them."""
    if ALL <= SOME:
        return tl.arange(0, SOME)
    return tl.program_id(2) * SOME + tl.arange(0, SOME)


@triton.jit
def _forward(x, weight, bias, y, winner, images, C: constexpr, H: constexpr, W: constexpr,
             O: constexpr, R: constexpr, P: constexpr, Q: constexpr, OUT: constexpr, PLACES: constexpr):  # noqa: E741
    image = tl.program_id(0)  # client * images + image
    place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)  # in the pooled picture
    out = _some(O, OUT)
    inside, real = place < P * Q, out < O
    there = tl.minimum(place, P * Q - 1)  # always in memory: no pixel needs a mask
    corner = x + image * C * H * W + (there // Q) * 2 * W + (there % Q) * 2  # upper left pixel of the window's patch
    kernel = weight + ((image // images) * O + out) * C * R * R
    start = tl.load(bias + (image // images) * O + out, mask=real, other=0.0)[:, None]
    v0 = start + tl.zeros([OUT, PLACES], tl.float32)  # the four values of each window
    v1, v2, v3 = v0, v0, v0
    for c in range(C):
        for i in range(R):
            row = corner + c * H * W + i * W
            upper, lower = tl.load(row)[None, :], tl.load(row + W)[None, :]
            for j in tl.static_range(R):
                tap = tl.load(kernel + (c * R + i) * R + j, mask=real, other=0.0)[:, None]
                v0 += tap * upper
                v2 += tap * lower
                upper = tl.load(row + j + 1)[None, :]  # on the right of this tap, on the left of the next
                lower = tl.load(row + W + j + 1)[None, :]
                v1 += tap * upper
                v3 += tap * lower
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


@triton.jit(do_not_specialize=["end", "stride"])
def _backward_weights(slope, winner, x, slopes, end, stride, parts, images, C: constexpr, H: constexpr, W: constexpr,
                      O: constexpr, R: constexpr, P: constexpr, Q: constexpr, TAPS: constexpr, OUT: constexpr,  # noqa: E741
                      PLACES: constexpr):
    client, part, c = tl.program_id(0) // parts, tl.program_id(0) % parts, tl.program_id(1)
    out = tl.program_id(2) * OUT + tl.arange(0, OUT)
    tap = tl.arange(0, TAPS)
    shift = (tap // R) * W + tap % R
    weights = tl.zeros([OUT, TAPS, PLACES], tl.float32)  # a lane owns a window and sums up its own products
    bias = tl.zeros([OUT, PLACES], tl.float32)
    for image in range(images):
        picture = tl.program_id(0) * images + image
        for start in range(0, P * Q, PLACES):
            place = start + tl.arange(0, PLACES)
            real = (out < O)[:, None] & (place < P * Q)[None, :]
            at = (picture * O + out)[:, None] * (P * Q) + place[None, :]
            won = tl.load(winner + at, mask=real, other=4).to(tl.int32)
            g = tl.where(won < 4, tl.load(slope + at, mask=real, other=0.0), 0.0)
            corner = ((place // Q) * 2 * W + (place % Q) * 2)[None, :] + (won % 4 // 2) * W + won % 2  # of its patch
            pixels = tl.load(x + (picture * C + c) * (H * W) + corner[:, None, :] + shift[None, :, None],
                             mask=real[:, None, :] & (tap < R * R)[None, :, None], other=0.0)
            weights += g[:, None, :] * pixels
            bias += g
    to = slopes + part * stride
    tl.store(to + (((client * O + out) * C + c) * (R * R))[:, None] + tap[None, :], tl.sum(weights, 2),
             mask=(out < O)[:, None] & (tap < R * R)[None, :])
    if c == 0:
        tl.store(to + end + client * O + out, tl.sum(bias, 1), mask=out < O)


@triton.jit(do_not_specialize=["count"])
def _padded(slope, winner, full, count, U: constexpr, V: constexpr, P: constexpr, Q: constexpr, MARGIN: constexpr,
            PIXELS: constexpr):
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    picture, u, v = at // (U * V), at // V % U - MARGIN, at % V - MARGIN
    inside = (u >= 0) & (u // 2 < P) & (v >= 0) & (v // 2 < Q) & (at < count)
    window = picture * (P * Q) + (u // 2) * Q + v // 2
    won = tl.load(winner + window, mask=inside, other=4).to(tl.int32)
    g = tl.load(slope + window, mask=inside, other=0.0)
    tl.store(full + at, tl.where(won == (u % 2) * 2 + v % 2, g, 0.0), mask=at < count)


@triton.jit
def _backward_input(full, weight, for_x, images, C: constexpr, H: constexpr, W: constexpr, O: constexpr,  # noqa: E741
                    R: constexpr, IN: constexpr, PIXELS: constexpr):
    U: constexpr = H + R - 1  # of a padded picture
    V: constexpr = W + R - 1
    picture = tl.program_id(0)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    c = _some(C, IN)
    there = tl.minimum(pixel, H * W - 1)
    corner = full + picture * (O * U * V) + (there // W + R - 1) * V + there % W + R - 1
    kernel = weight + (picture // images) * (O * C * R * R) + c * (R * R)
    total = tl.zeros([IN, PIXELS], tl.float32)
    for o in range(O):
        for i in range(R):
            for j in tl.static_range(R):
                g = tl.load(corner + o * (U * V) - i * V - j)  # where the tap (i, j) looked at this pixel from
                tap = tl.load(kernel + o * (C * R * R) + i * R + j, mask=c < C, other=0.0)
                total += tap[:, None] * g[None, :]
    to = (picture * C + c)[:, None] * (H * W) + pixel[None, :]
    tl.store(for_x + to, total, mask=(c < C)[:, None] & (pixel < H * W)[None, :])
