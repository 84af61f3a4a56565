"""Clients that lie, in simulations: what bounds and robust means are judged by.

`2:scaled:100` is two clients, drawn by the seed, who send a hundred times their update. An attacker trains as everybody
does; what it sends is altered on its way to the server, on every engine alike, before the server has looked at it. One
that is `mislabelled` sends what it should, and learns wrong labels. The truth of a run names them, and scores and
agreement are of the others.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from umbel import tree
from umbel.data import shift
from umbel.data.clients import IntArray
from umbel.data.plans import Plan
from umbel.errors import UmbelError, unknown
from umbel.federation.phases import ADMIT, SIGNATURE
from umbel.seeds import generator
from umbel.tree import Tree

if TYPE_CHECKING:
    from umbel.federation.door import Answered, Call

KINDS: dict[str, float | None] = {  # and the number that each takes, by default
    "scaled": 10.0,  # sends its update so many times
    "flipped": 1.0,  # the same, the other way
    "mislabelled": None,  # learns the last class for the first, and so on
    "forged": None,  # tells noise where clients are grouped by what they tell; it trains honestly
}
FARTHEST = 1e30


class Attack(NamedTuple):
    """What a text asks for."""

    many: int
    kind: str
    by: float = 1.0


def parse(text: str) -> Attack | None:
    """`2:scaled:100` as an attack; nothing of nothing."""
    if not text:
        return None
    read = re.fullmatch(r"([1-9][0-9]{0,5}):([a-z]+)(?::(.+))?", text.strip())
    if read is None:
        raise UmbelError(f"An attack is written COUNT:KIND or COUNT:KIND:NUMBER, as in 2:scaled:100. Got '{text}'"
                         " instead.")
    kind, number = read[2], read[3]
    if kind not in KINDS:
        raise unknown("attack", kind, KINDS)
    usual = KINDS[kind]
    if usual is None and number is not None:
        raise UmbelError(f"The attack '{kind}' takes no number. Got '{text}' instead.")
    try:
        by = float(number or usual or 1)
    except ValueError:
        by = -1.0
    if not 0 < by <= FARTHEST:
        raise UmbelError(f"The number of an attack must be greater than 0 and at most 1e30. Got '{number}' instead.")
    return Attack(int(read[1]), kind, by)


def places(attack: Attack, clients: int, seed: int) -> list[int]:
    """Positions of the attackers, drawn by the seed; somebody must be honest."""
    if attack.many >= clients:
        raise UmbelError(f"Attackers must be fewer than the clients. Got {attack.many} of {clients}.")
    return sorted(generator(seed, "attackers").permutation(clients)[: attack.many].tolist())


def mislabelled(plan: Plan, who: Sequence[int], y: IntArray) -> Plan:
    """The plan with the labels of some clients turned round; `y` are those of all rows before any shift."""
    classes = plan.classes
    if not classes:
        raise UmbelError("Clients are mislabelled by classes, and the targets of these data are none: take another"
                         " attack.")
    turned = "+".join(f"swap:{k}-{classes - 1 - k}" for k in range(classes // 2))
    shifts = [shift.on_top(own, turned, y[np.concatenate([plan.train[i], plan.test[i]])]) if i in who else own
              for i, own in enumerate(plan.shift)]
    return replace(plan, shift=shifts)


@dataclass(frozen=True)
class Attackers:
    """Who attacks in a simulation, and how."""

    attack: Attack
    who: Tensor  # (n,) whether a client is one
    seed: int

    @classmethod
    def of(cls, attack: Attack, clients: int, seed: int) -> Self:
        """Those whom the seed draws."""
        who = torch.zeros(clients, dtype=torch.bool)
        who[places(attack, clients, seed)] = True
        return cls(attack, who, seed)

    def lie(self, chunk: "Answered", call: "Call") -> "Answered":
        """The same answers, with those of attackers as they send them."""
        theirs = self.who[call.cohort.ids[chunk.positions]]
        at, positions = theirs.nonzero().flatten(), chunk.positions[theirs]
        if not len(at):
            return chunk
        send = tree.each(lambda leaf: leaf[at.to(leaf.device)], chunk.send)
        if self.attack.kind == "forged" and call.cohort.phase in (SIGNATURE, ADMIT):
            send = self._forged(send, call, positions)
        elif self.attack.kind in ("scaled", "flipped") and isinstance(send.get("model"), dict):
            by = self.attack.by if self.attack.kind == "scaled" else -self.attack.by
            send = self._moved(send, call, positions, by)
        else:
            return chunk
        return chunk._replace(send=tree.each(lambda leaf, lie: leaf.index_copy(0, at.to(leaf.device), lie),
                                             chunk.send, send))

    def _moved(self, send: Tree, call: "Call", positions: Tensor, by: float) -> Tree:
        """So many times the way from the model that was sent; from zero where none was."""
        start = call.received(positions).get("model", {})

        def one(name: str, leaf: Tensor) -> Tensor:
            if not leaf.is_floating_point():
                return leaf
            old = start[name].to(leaf.device) if name in start else torch.zeros_like(leaf)
            return old + by * (leaf - old)

        return {**send, "model": {name: one(name, leaf) for name, leaf in send["model"].items()}}

    def _forged(self, send: Tree, call: "Call", positions: Tensor) -> Tree:
        """Noise as long as what it takes the place of: each vector of a signature, each layer of an update."""
        start = call.received(positions).get("model", {})
        about = (call.task.name, call.cohort.phase, call.cohort.round)

        def one(name: str, leaf: Tensor, old: Tensor | None = None) -> Tensor:
            if not leaf.is_floating_point() or not leaf[0].numel():
                return leaf
            own = leaf if old is None else leaf - old.to(leaf.device)
            noise = torch.stack([torch.from_numpy(generator(self.seed, "forged", int(place), *about, name)
                                                  .standard_normal(own.shape[1:])) for place in positions])
            noise = noise.to(own.device, own.dtype)
            axes = -1 if old is None else tuple(range(1, own.dim()))
            long, grain = (torch.linalg.vector_norm(each, dim=axes, keepdim=True) for each in (own, noise))
            made: Tensor = noise * (long / grain.clamp(min=1e-12))
            return made if old is None else old.to(leaf.device) + made

        forged = {name: one(name, leaf) for name, leaf in send.items() if not isinstance(leaf, dict)}
        layers = {kind: {name: one(name, leaf, start.get(name)) for name, leaf in leaves.items()}
                  for kind, leaves in send.items() if isinstance(leaves, dict)}
        return {name: {**forged, **layers}[name] for name in send}
