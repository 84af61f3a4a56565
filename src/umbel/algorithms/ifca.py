"""IFCA: in every round each client picks the cluster model that fits its training data best.

Ghosh et al. An Efficient Framework for Clustered Federated Learning. NeurIPS 2020. https://arxiv.org/abs/2006.04088
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, choose_by_loss, clustered_round, training
from umbel.algorithms.server import SERVERS
from umbel.federation.door import Cohort, Federation
from umbel.fields import choice, number
from umbel.seeds import generator


@dataclass(frozen=True)
class IFCA(Algorithm):
    """Assignment by training loss, never by test data.

    `first="loss"` is the original. The Comparative Evaluation puts clients into random clusters for the first round
    (`first="random"`), or with probability `expert` into the right one (`first="expert"`, which is told the truth).
    The original averages members without weights; we weigh by size, as its FEMNIST code does.
    """

    clusters: int = number(2, ge=1, le=1000)  # k
    first: str = choice("loss", "loss", "random", "expert")
    expert: float = number(0.5, ge=0, le=1)  # p
    truth: tuple[int, ...] = ()  # filled in from the scenario; read by first="expert" only
    local: Local = training()

    name: ClassVar[str] = "ifca"
    meanings: ClassVar[str] = "by loss"
    servers: ClassVar[tuple[str, ...]] = SERVERS
    private_norms: ClassVar[bool] = False  # clients choose by the loss of whole models

    @property
    def needs_truth(self) -> bool:
        """Only the expert knows."""
        return self.first == "expert"

    @property
    def tells(self) -> tuple[str, ...]:
        """Losses, by which clients choose."""
        return ("scores",)

    def init(self, fed: Federation, seed: int) -> State:
        """k random models; clients are unplaced until they have chosen, or placed at random."""
        models = tree.to(tree.stack([fed.net.init(seed + k) for k in range(self.clusters)]), fed.device)
        first = torch.tensor([self._first(seed, name, i) for i, name in enumerate(fed.names)])
        return State(models, torch.where(fed.online, first, -1))

    def _first(self, seed: int, name: str, i: int) -> int:
        if self.first == "loss":
            return -1
        rng = generator(seed, "first", name)
        right = self.first == "expert" and rng.random() < self.expert
        return self.truth[i] % self.clusters if right else int(rng.integers(self.clusters))

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """Choose (in round 0 the choice was made just before), train, average per cluster."""
        state = self.admit(fed, state, cohort) if cohort.round else state
        return clustered_round(fed, state, cohort, self.local, server=self.server_rule)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """j_i = argmin_j F_i(w_j) on training rows. A newcomer never founds a cluster: some model fits least badly."""
        return choose_by_loss(fed, state, newcomers)
