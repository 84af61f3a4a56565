"""Triton kernel of `sums.py`: up to 16 tensors in one launch, in blocks small enough to fill a GPU.

Torch's own multi-tensor kernels give a block 65,536 numbers: a model of 60,000 then keeps a handful of 132 processors
busy.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

AT_ONCE = 16
BLOCK = 2048


def add(out: Sequence[Tensor], a: Sequence[Tensor], b: Sequence[Tensor], scale: float) -> None:
    """out = a + scale * b for stacked tensors (clients, ...), one by one; all contiguous, float32."""
    _launch(out, a, b, scale)


def copy(out: Sequence[Tensor], a: Sequence[Tensor]) -> None:
    """out = a for stacked tensors (clients, ...), one by one; all contiguous, float32."""
    if out:
        _launch(out, a, a, None)


def _launch(out: Sequence[Tensor], a: Sequence[Tensor], b: Sequence[Tensor], scale: float | None) -> None:
    for start in range(0, len(out), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        clients = len(out[start])
        sizes = tuple(leaf[0].numel() for leaf in out[part])  # of one client: they do not change with the width
        grid = (len(sizes), triton.cdiv(clients * max(sizes), BLOCK))
        _add[grid](tuple(out[part]), tuple(a[part]), tuple(b[part]), clients, scale or 0.0,
                   sizes, scale is None, len(sizes), BLOCK)


@triton.jit(do_not_specialize=["clients"])
def _add(out, a, b, clients, scale, SIZES: constexpr, COPY: constexpr, N: constexpr, BLOCK: constexpr):  # type: ignore[no-untyped-def]
    which = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for k in tl.static_range(N):
        if which == k:
            inside = at < clients * SIZES[k]
            value = tl.load(a[k] + at, mask=inside)
            if not COPY:
                value += scale * tl.load(b[k] + at, mask=inside)
            tl.store(out[k] + at, value, mask=inside)
