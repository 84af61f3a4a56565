"""The reference: one client after another, in plain torch. For debugging and as the yardstick of other engines."""

from collections.abc import Iterator

import torch

from umbel.data.clients import Population
from umbel.engines.local import LocalEngine
from umbel.federation.door import Answered, Call, Silent
from umbel.nets.model import Model


class LoopEngine(LocalEngine):
    """`map` is a for loop."""

    def __init__(self, net: Model, population: Population, seed: int = 0, device: str | torch.device = "cpu") -> None:
        super().__init__(net, population, seed, device)

    def perform(self, call: Call) -> Iterator[Answered | Silent]:
        """Ask one client at a time."""
        yield from self.one_by_one(call)
