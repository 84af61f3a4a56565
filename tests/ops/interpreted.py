"""Every Triton kernel beside plain torch, on a CPU: run by `test_triton_interpreted.py` with TRITON_INTERPRET=1.

Prints one line of JSON: for each kernel the largest difference, as a share of the largest number (at least one).
Ends with code 3 where Triton itself does not run interpreted.
"""

import json
import sys
from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, max_pool2d, relu

from umbel.ops import dense_triton, loss_triton, pooled_triton, updates_triton

# Clients, batch, channels, height, width, out, reach. Together they take every branch: odd sides, several programs a
# picture, a sum over images, more channels than one program has.
POOLED = [(2, 3, 1, 9, 11, 5, 3), (2, 2, 3, 20, 20, 6, 5), (1, 2, 10, 8, 8, 11, 3)]
DENSE = [(2, 5, 9, 8), (2, 17, 130, 33)]  # clients, batch, features, out: inside one block, and over its edges
MANY = [(2, 3), (2, 70, 20)] + [(2, n) for n in range(1, 17)]  # 18 tensors: two launches, of several blocks

Pair = tuple[Tensor, Tensor]  # what a kernel gives, what plain torch gives


@triton.jit
def _plus_one(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.load(x + at) + 1)


def pooled() -> Iterable[tuple[str, Pair]]:
    for k, b, c, h, w, o, r in POOLED:
        x = torch.rand(k, b, c, h, w, requires_grad=True)
        weight, bias = (torch.randn(k, o, c, r, r) / 5).requires_grad_(), (torch.randn(k, o) / 10).requires_grad_()
        expected = torch.vmap(lambda *one: max_pool2d(relu(conv2d(*one)), 2))(x, weight, bias)
        slope = torch.randn_like(expected)
        slopes = torch.autograd.grad(expected, (x, weight, bias), slope)
        with torch.no_grad():
            y, winner = pooled_triton.forward(x, weight, bias)
            for_weight, for_bias = pooled_triton.backward_weights(slope, winner, x, r)
            yield "pooled, forwards", (y, expected)
            yield "pooled, input", (pooled_triton.backward_input(slope, winner, weight, h, w), slopes[0])
            yield "pooled, weight", (for_weight, slopes[1])
            yield "pooled, bias", (for_bias, slopes[2])


def dense() -> Iterable[tuple[str, Pair]]:
    for k, b, f, n in DENSE:
        x, weight, bias, slope = torch.randn(k, b, f), torch.randn(k, n, f), torch.randn(k, n), torch.randn(k, b, n)
        for_weight, for_bias = dense_triton.backward_weights(slope, x)
        yield "dense, forwards", (dense_triton.forward(x, weight, bias), x @ weight.mT + bias[:, None])
        yield "dense, weight", (for_weight, slope.mT @ x)
        yield "dense, bias", (for_bias, slope.sum(1))


def loss() -> Iterable[tuple[str, Pair]]:
    logits = (30 * torch.randn(3, 5, 7)).requires_grad_()  # far enough apart that a sum of bare exponentials is off
    y = torch.randint(0, 7, (3, 5))
    for live in (None, torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)):
        kept = torch.ones(3, 5) if live is None else live.float()
        rows = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(3, 5)
        expected = (rows * kept).sum(1) / kept.sum(1).clamp(min=1)
        (for_logits,) = torch.autograd.grad(expected.sum(), logits)
        with torch.no_grad():
            value, slope = loss_triton.forward(logits, y, live)
        yield "loss, forwards", (value, expected)
        yield "loss, slope", (slope, for_logits)


def updates() -> Iterable[tuple[str, Pair]]:
    weights, velocity, slopes = ([torch.randn(shape) for shape in MANY] for _ in range(3))
    for scale, sign in ((0.3, 1), (0.3, -1), (torch.tensor(0.3), 1), (torch.tensor(0.3), -1)):
        for sum_, w, v in zip(updates_triton.add(weights, velocity, scale, sign), weights, velocity, strict=True):
            yield "updates, add", (sum_, w + sign * 0.3 * v)
    for lr in (0.1, torch.tensor(0.1)):  # a number, and one that the kernel reads
        speed = [g + 0.5 * v for g, v in zip(slopes, velocity, strict=True)]
        after = [w - 0.1 * v for w, v in zip(weights, speed, strict=True)]
        updates_triton.sgd(weights, velocity, slopes, lr, 0.5)
        for k in range(len(MANY)):
            yield "updates, weights", (weights[k], after[k])
            yield "updates, velocity", (velocity[k], speed[k])


def main() -> None:
    """Compare all of them."""
    try:
        x = torch.arange(4.0)
        _plus_one[(1,)](x, y := torch.zeros(4), 4)
        assert torch.equal(y, x + 1)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(3)
    torch.manual_seed(0)
    apart: dict[str, float] = {}
    for part in (pooled, dense, loss, updates):
        for name, (ours, plain) in part():
            off = ((ours - plain).abs().max() / plain.abs().max().clamp(min=1)).detach()
            apart[name] = max(apart.get(name, 0.0), float(off.nan_to_num(torch.inf)))
    print(json.dumps(apart))


if __name__ == "__main__":
    main()
