"""How long updates are, and which of them are too long to be believed.

A mean follows one answer as far as that one likes: a single number of 1e30 would be the end of a model. So an update is
held against those of the others who were sent the same model, and one that is many times as long as their median is
left out, with its sender's name. It is not scaled down to what is allowed: its direction is as little to be believed as
its length, methods read more of an answer than its mean, and an answer is believed whole or not at all.

Honest lengths differ too, with rows and steps: `BOUND` is well above that (`benchmarks/lengths.py`). All of it is
computed by the server, of what it hears.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from umbel import tree
from umbel.federation.tasks import Leaf
from umbel.tree import Held, Params, Stack, Tree

if TYPE_CHECKING:
    from umbel.federation.door import Answered, Call

BOUND = 10.0  # times the median
LOOSE = 3.0  # bounds for what is no model: control variates differ by the inverse of steps as well
FEW = 3  # answers; the median of fewer says nothing


class Part(NamedTuple):
    """Layers of an answer whose length is taken together."""

    title: str  # what a person reads
    kind: str  # the name of the answer
    layers: tuple[str, ...]


def parts_of(expected: Tree, statistics: Collection[str]) -> list[Part]:
    """What of a promised answer has a length: trees of numbers by layer. Running statistics have one of their own."""
    found = []
    for kind, leaves in expected.items():
        if isinstance(leaves, dict):
            names = [name for name, leaf in leaves.items() if isinstance(leaf, Leaf) and leaf.dtype.is_floating_point]
            apart = tuple(name for name in names if kind == "model" and name in statistics)
            together = tuple(name for name in names if name not in apart)
            found += [Part("update" if kind == "model" else kind, kind, together),
                      Part("running statistics", kind, apart)]
    return [part for part in found if part.layers]


class Lengths:
    """How long the parts of the answers of one call are, measured as they come."""

    def __init__(self, call: "Call", expected: Tree, statistics: Collection[str],
                 steps: Tensor | None = None) -> None:
        self.call = call
        self.steps = steps  # (m,) that the clients were asked for, by the rows they told, where that is known
        self.parts = parts_of(expected, statistics)
        self.of: dict[Part, Tensor] = {}  # (m,) float64, by position of the cohort

    def measure(self, chunk: "Answered") -> None:
        """How far answers lie from the model that their senders were sent; what answers nothing, from zero."""
        for part in self.parts:
            answer = chunk.send[part.kind]
            start = _start(self.call, part, chunk.positions)
            long = _norm(answer[name] - start[name].to(answer[name].device) if name in start else answer[name]
                         for name in part.layers)
            if part not in self.of:
                self.of[part] = long.new_zeros(len(self.call.cohort.ids))
            self.of[part].index_copy_(0, chunk.positions.to(long.device), long)

    def too_long(self, heard: Tensor, bound: float) -> dict[int, str]:
        """By position, why an answer that was heard, (m,), is not believed: `bound` is the multiple that may be.

        Longer than that many times what is usual: the median of those who moved at all from the same model. Of fewer
        than three it is the length of the model that they were sent, or the median of all who were asked if that is
        more: a young cluster has farther to go than old ones. Who takes so many times as many steps as the median
        client may also go so many times as far.
        """
        reasons: dict[int, str] = {}
        for part, lengths in self.of.items():
            long = lengths.cpu()
            most = self._multiple(heard, bound if part.kind == "model" else LOOSE * bound)
            wrong = heard & (long > most * self._usual(part, long, heard))
            reasons |= {position: f"{part.title} more than {float(most[position]):g} times as long as usual"
                        for position in wrong.nonzero().flatten().tolist()}
        return reasons

    def _multiple(self, heard: Tensor, bound: float) -> Tensor:
        """(m,) how many times what is usual may be: the bound, or by how many times a client takes more steps."""
        if self.steps is None or not bool(heard.any()):
            return torch.full(heard.shape, bound, dtype=torch.float64)
        return (self.steps / self.steps[heard].median().clamp(min=1)).double().clamp(min=bound)

    def _usual(self, part: Part, long: Tensor, heard: Tensor) -> Tensor:
        """(m,) what lengths are held against; infinite where there is nothing."""
        counts = heard & (long > 0) & long.isfinite()
        usual = _sent(self.call, part, len(long))
        if int(counts.sum()) >= FEW:
            usual = usual.clamp(min=long[counts].median())
        usual = torch.where(usual > 0, usual, torch.inf)
        of = _cluster(self.call)
        places = of.argsort(stable=True)
        ends = torch.unique_consecutive(of[places], return_counts=True)[1].cumsum(0)
        for members in places.tensor_split(ends[:-1]):
            moved = long[members][counts[members]]
            if len(moved) >= FEW:
                usual[members] = moved.median()
        return torch.where(long.isfinite(), usual, 0)  # what overflows is too long for any


def _start(call: "Call", part: Part, positions: Tensor) -> Stack:
    """The layers that these positions were sent, stacked; one row where all were sent the same, none at all if none."""
    if part.kind != "model":
        return {}
    sent = call.each.get("model")
    if sent is None:
        shared: Params = call.shared.get("model", {})
        return {name: shared[name][None] for name in part.layers if name in shared}
    if not isinstance(sent, Held):
        return {name: sent[name][positions] for name in part.layers if name in sent}
    index = sent.index[positions]
    rows = index[:1] if len(index) and bool((index == index[0]).all()) else index
    return {name: sent.models[name][rows.to(sent.models[name].device)] for name in part.layers if name in sent.models}


def _sent(call: "Call", part: Part, many: int) -> Tensor:
    """(m,) how long the model was that each was sent, in these layers; 0 where there was none."""
    sent = call.each.get("model")
    shared: Params = call.shared.get("model", {})
    models = sent.models if isinstance(sent, Held) else sent or tree.each(lambda leaf: leaf[None], shared)
    if part.kind != "model" or not all(name in models for name in part.layers):
        return torch.zeros(many, dtype=torch.float64)
    long = _norm(models[name] for name in part.layers).cpu()
    return long[sent.index.cpu()] if isinstance(sent, Held) else long.expand(many)


def _cluster(call: "Call") -> Tensor:
    """(m,) a number that those share who were sent the same model."""
    sent = call.each.get("model")
    return sent.index if isinstance(sent, Held) else torch.zeros(len(call.cohort.ids), dtype=torch.long)


def _norm(leaves: Iterable[Tensor]) -> Tensor:
    """(n,) of stacked layers, together."""
    each = [torch.linalg.vector_norm(leaf.reshape(len(leaf), -1), dim=1).double() for leaf in leaves]
    together: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return together
