"""How the answers of a cluster's members become one, and how its model follows that: at once, or by a rule with memory.

FedAvgM: Hsu et al. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.
https://arxiv.org/abs/1909.06335
FedAdam, FedYogi: Reddi et al. Adaptive Federated Optimization. ICLR 2021. https://arxiv.org/abs/2003.00295
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.aggregates import AGGREGATES
from umbel.fields import choice, number
from umbel.tree import Stack, Tree

SERVERS = ("none", "fedavgm", "fedadam", "fedyogi")
BETA2, TAU = 0.99, 1e-3  # Reddi et al., Sec. 5 and D.2: beta_2, and how adaptive a step is
RATES = {"none": 1.0, "fedavgm": 1.0, "fedadam": 0.01, "fedyogi": 0.01}  # eta; Reddi et al. tune it per data set
REST = {"velocity": 0.0, "first": 0.0, "second": TAU**2}  # each slot of a cluster that has not moved yet


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What every method can be told of its server; `Algorithm.servers` says which rules a method admits."""

    aggregate: str = choice("mean", *AGGREGATES)  # how the members' answers become one
    faulty: float = number(0.2, ge=0, lt=0.5)  # share of a cluster's answers that trimmed and krum bear to be false
    server: str = choice("none", *SERVERS)  # how the cluster's model follows it; none: it becomes it
    server_lr: float | None = number(None, gt=0)  # eta; none: 1 for fedavgm, 0.01 for the adaptive ones
    server_momentum: float = number(0.9, ge=0, lt=1)  # beta_1

    def __post_init__(self) -> None:
        """`Algorithm` checks; without this line a method that is no dataclass itself would not be."""

    @property
    def server_rule(self) -> "Server":
        """These settings, as `averaged` takes them."""
        return Server(self.server, self.server_lr or RATES[self.server], self.server_momentum, self.aggregate,
                      self.faulty)


@dataclass(frozen=True)
class Server:
    """How answers become one, and a rule by which models follow that, with one row of slots for every cluster."""

    rule: str = "none"
    lr: float = 1.0  # eta
    momentum: float = 0.9  # beta_1
    aggregate: str = "mean"  # a name in AGGREGATES
    faulty: float = 0.2

    def as_one(self, models: Stack, labels: Tensor, size: Tensor, otherwise: Stack) -> Stack:
        """One model a label of what the clients sent; layers that stayed with them are as before."""
        aggregate = AGGREGATES[self.aggregate]
        if len(models) == len(otherwise):
            return aggregate(models, labels, size, otherwise, self.faulty)
        return {**otherwise, **aggregate(models, labels, size, tree.part(otherwise, models), self.faulty)}

    def begin(self, models: Stack) -> Tree:
        """The slots of these models, at rest."""
        slots = ("velocity",) if self.rule == "fedavgm" else ("first", "second")
        return {slot: tree.each(lambda leaf, rest=REST[slot]: torch.full_like(leaf, rest), models) for slot in slots}

    def follow(self, models: Stack, means: Stack, heard: Tensor, slots: Tree,
               acts_on: Collection[str] | None = None) -> tuple[Stack, Tree]:
        """New models and slots of all clusters; those of which nobody was `heard`, (k,), keep both as they were.

        The rule acts on the names in `acts_on`, by default all. Others, which no client trains by a slope (running
        statistics, say), become their mean. No bias is corrected, as printed.
        """
        names = [name for name in models if acts_on is None or name in acts_on]
        old = {name: models[name] for name in names}
        if not slots or tree.count(slots) != tree.count(models):  # models formed anew
            slots = self.begin(old)
        change = {name: means[name] - models[name] for name in names}  # Delta
        after = self._slots(slots, change)
        moved = tree.each(lambda leaf, step: leaf + self.lr * step, old, self._step(after))
        seen = heard.to(tree.device_of(models))

        def where_heard(new: Tensor, before: Tensor) -> Tensor:
            return torch.where(seen.view(-1, *[1] * (new.dim() - 1)), new, before)

        return {**means, **tree.each(where_heard, moved, old)}, tree.each(where_heard, after, slots)

    def _slots(self, slots: Tree, change: Stack) -> Tree:
        beta = self.momentum
        if self.rule == "fedavgm":
            return {"velocity": tree.each(lambda v, d: beta * v + d, slots["velocity"], change)}
        second = _yogi if self.rule == "fedyogi" else _adam
        return {"first": tree.each(lambda m, d: beta * m + (1 - beta) * d, slots["first"], change),
                "second": tree.each(second, slots["second"], change)}

    def _step(self, slots: Tree) -> Stack:
        if self.rule == "fedavgm":
            velocity: Stack = slots["velocity"]
            return velocity
        return tree.each(lambda m, v: m / (v.sqrt() + TAU), slots["first"], slots["second"])


def _adam(v: Tensor, change: Tensor) -> Tensor:
    return BETA2 * v + (1 - BETA2) * change.square()


def _yogi(v: Tensor, change: Tensor) -> Tensor:
    return v - (1 - BETA2) * change.square() * (v - change.square()).sign()


def grown(slots: Tree, clusters: int) -> Tree:
    """Slots with rows for more clusters behind the old ones, which start at rest; none where there are none."""
    return {
        slot: tree.each(lambda leaf, rest=REST[slot]: torch.cat(
            [leaf, torch.full((clusters, *leaf.shape[1:]), rest, dtype=leaf.dtype, device=leaf.device)]), part)
        for slot, part in slots.items()
    }
