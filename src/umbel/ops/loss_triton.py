"""Triton kernel of `loss.py`: one program a client."""

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr


def forward(logits: Tensor, y: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
    """Loss and slope; see `loss.forward`."""
    logits, y, live = logits.contiguous(), y.contiguous(), None if live is None else live.contiguous()
    k, b, classes = logits.shape
    loss, slope = logits.new_empty(k), logits.new_empty(k, b, classes)
    rows, columns = triton.next_power_of_2(b), triton.next_power_of_2(classes)
    _mean_loss[(k,)](logits, y, live, loss, slope, b, classes, rows, columns)
    return loss, slope


@triton.jit
def _mean_loss(logits, y, live, loss, slope, B: constexpr, C: constexpr, ROWS: constexpr, CLASSES: constexpr):
    client = tl.program_id(0)
    row, column = tl.arange(0, ROWS), tl.arange(0, CLASSES)
    at = client * B * C + row[:, None] * C + column[None, :]
    inside = (row < B)[:, None] & (column < C)[None, :]
    z = tl.load(logits + at, mask=inside, other=0.0)
    z = tl.where((column < C)[None, :], z, float("-inf"))
    top = tl.max(z, 1)
    e = tl.exp(z - top[:, None])
    total = tl.sum(e, 1)
    label = tl.load(y + client * B + row, mask=row < B, other=0)
    right = column[None, :] == label[:, None]
    losses = tl.log(total) + top - tl.sum(tl.where(right, z, 0.0), 1)
    weight = (row < B).to(tl.float32)
    if live is not None:
        weight = tl.load(live + client * B + row, mask=row < B, other=0).to(tl.float32)
    weight = weight / tl.maximum(tl.sum(weight, 0), 1.0)
    tl.store(loss + client, tl.sum(losses * weight, 0))
    tl.store(slope + at, (e / total[:, None] - tl.where(right, 1.0, 0.0)) * weight[:, None], mask=inside)
