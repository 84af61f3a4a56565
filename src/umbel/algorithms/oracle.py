"""The oracle: FedAvg inside the true groups, which it is told. What a perfect clustering would reach.

The Comparative Evaluation's *centralised* oracle, one model trained on each group's pooled data, is SOLO on
`population.pooled()` instead (`umbel run solo --pooled`).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, clustered_round, one_cluster, training
from umbel.algorithms.server import SERVERS
from umbel.federation.door import Cohort, Federation


@dataclass(frozen=True)
class Oracle(Algorithm):
    """Federated averaging inside given groups."""

    truth: tuple[int, ...] = ()  # group of each client; filled in from the scenario
    local: Local = training()

    name: ClassVar[str] = "oracle"
    servers: ClassVar[tuple[str, ...]] = SERVERS

    @property
    def needs_truth(self) -> bool:
        """Always."""
        return True

    def init(self, fed: Federation, seed: int) -> State:
        """The same random model for every group."""
        state = one_cluster(fed, seed)
        grown = state.grow(tree.take(state.models, 0), max(self.truth))
        return replace(grown, labels=torch.where(fed.online, torch.tensor(self.truth), -1))

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg in each group."""
        return clustered_round(fed, state, cohort, self.local, server=self.server_rule)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """A newcomer joins its true group."""
        labels = state.labels.clone()
        labels[newcomers.ids] = torch.tensor(self.truth)[newcomers.ids]
        return replace(state, labels=labels)
