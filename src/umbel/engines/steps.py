"""The steps of clients that train side by side, one vectorised step at a time: as they come, or from a CUDA graph.

Both keep the clients' carries as one tree with a leading axis, longest schedule first, and advance the first `width`
of them. A client that has finished must be read (`rows`) before the others go on: on a GPU a width is rounded up to one
of a few, so that later steps may write over it.
"""

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from umbel import tree
from umbel.tree import Tree

Gather = Callable[[Tensor], tuple[Tensor, Tensor]]  # rows of the pool -> images, labels
Step = Callable[..., Tree]  # carry, fixed, images (w, b, ...), labels (w, b), `beside` of this step -> carry
Stepper = Callable[[dict[str, Any]], Step]  # options that change by the round, numbers or 0-d tensors -> a step
LONG = 10  # steps of a long graph, which is launched once and gathers their images at once
SHARES = (1.0, 0.8, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)  # widths that are recorded, as shares of the whole chunk


def widths(most: int) -> list[int]:
    """The widths that are recorded for a chunk of `most` clients: few enough to record, enough to waste little."""
    return sorted({max(1, math.ceil(round(share * most, 6))) for share in SHARES})


class Steps:
    """Steps as they come."""

    def __init__(self, gather: Gather, stepper: Stepper) -> None:
        self.gather, self.stepper = gather, stepper

    def load(self, carry: Tree, fixed: Tree, rows: Tensor, beside: Tree, changing: dict[str, float]) -> None:
        """Clients at their start, their schedule (steps, clients, batch), and this round's `changing` options.

        `beside` the schedule are `live` and `key`, if any.
        """
        self.step = self.stepper(changing)
        self.carry, self.fixed, self.schedule, self.beside, self.turn = carry, fixed, rows, beside, 0

    def play(self, width: int, steps: int) -> None:
        """Let the first `width` clients take their next steps."""
        for _ in range(steps):
            first = slice(0, width)
            beside = {name: part[self.turn, :width] for name, part in self.beside.items()}
            self.carry = self.step(tree.take(self.carry, first), tree.take(self.fixed, first),
                                   *self.gather(self.schedule[self.turn, :width]), beside)
            self.turn += 1

    def rows(self, first: int, last: int) -> Tree:
        """Carries of these clients as they are now. Those of clients that left before are no longer kept."""
        return tree.take(self.carry, slice(first, last))


class Recorded:
    """Steps replayed from CUDA graphs, one a width, over buffers that stay where they are.

    A replay launches all kernels of a step at once; without it, launching them takes ten times as long as running them.
    The schedule lies in a buffer as well, and a counter on the GPU says which row of it is due; so do the options that
    change by the round, which a graph reads there.
    """

    def __init__(self, gather: Gather, stepper: Stepper, carry: Tree, fixed: Tree, rows: Tensor, beside: Tree,
                 changing: Iterable[str], pool: Any) -> None:
        self.gather, self.stepper = gather, stepper
        self.changing = {name: torch.zeros((), dtype=torch.float64, device=rows.device) for name in changing}
        self.step = stepper(self.changing)
        self.pool = pool  # memory of the graphs, shared: they never run at the same time and leave nothing in it
        self.carry, self.fixed = (tree.each(torch.empty_like, part) for part in (carry, fixed))
        self.schedule = torch.zeros_like(rows)
        self.beside = tree.zeros_like(beside)
        self.turn = torch.zeros(1, dtype=torch.int64, device=rows.device)
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}  # by width and number of steps
        self.widths = widths(rows.shape[1])

    def load(self, carry: Tree, fixed: Tree, rows: Tensor, beside: Tree, changing: dict[str, float]) -> None:
        """Copy clients, schedule and options into the buffers; the schedule may be shorter than its buffer."""
        for name, buffer in self.changing.items():
            buffer.fill_(changing[name])
        _copy(self.carry, carry)
        _copy(self.fixed, fixed)
        self.schedule[: len(rows)].copy_(rows)
        for name, part in beside.items():
            self.beside[name][: len(part)].copy_(part)
        self.turn.zero_()

    def play(self, width: int, steps: int) -> None:
        """Let the first `width` clients, or a few more, take their next steps."""
        width = next(known for known in self.widths if known >= width)
        for length, times in ((LONG, steps // LONG), (1, steps % LONG)):
            if times and (width, length) not in self.graphs:
                self.graphs[width, length] = self._record(width, length)
            for _ in range(times):
                self.graphs[width, length].replay()

    def rows(self, first: int, last: int) -> Tree:
        """A copy of these clients' carries as they are now."""
        now = tree.take(self.carry, slice(first, last))
        copied = tree.each(torch.empty_like, now)
        _copy(copied, now)
        return copied

    def _record(self, width: int, length: int) -> torch.cuda.CUDAGraph:
        first = slice(0, width)
        carry, fixed = tree.take(self.carry, first), tree.take(self.fixed, first)

        def steps(count: int) -> Tree:
            after = carry
            turns = self.turn + torch.arange(count, device=self.turn.device)
            x, y = self.gather(self.schedule.index_select(0, turns)[:, :width])
            beside = {name: part.index_select(0, turns)[:, :width] for name, part in self.beside.items()}
            for k in range(count):
                after = self.step(after, fixed, x[k], y[k], tree.take(beside, k))
            return after

        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), _no_garbage_collection():  # an old graph that ends now would spoil the new one
            before = tree.each(torch.clone, carry)
            steps(1)  # once for nothing: libraries and kernels make themselves ready
            _copy(carry, before)
            torch.cuda.synchronize()
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                _copy(carry, steps(length))
                self.turn += length
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
        return graph


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _copy(to: Tree, source: Tree) -> None:
    """Write `source` over `to`, but for what a step has written there itself."""
    places = tree.named(to)
    leaves = {name: leaf for name, leaf in tree.named(source).items() if leaf.data_ptr() != places[name].data_ptr()}
    if leaves:
        torch._foreach_copy_([places[name] for name in leaves], list(leaves.values()))


def kind(*trees: Tree | Tensor | None) -> tuple[Any, ...]:
    """Names, shapes and types: trees of one kind fit the same buffers."""
    parts: list[Any] = []
    for each in trees:
        leaves = each if isinstance(each, dict) else {"": each}
        parts += [None if leaf is None else (name, tuple(leaf.shape), leaf.dtype)
                  for name, leaf in tree.named(leaves).items()]
    return tuple(parts)
