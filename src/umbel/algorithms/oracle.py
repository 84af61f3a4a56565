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
from umbel.data.clients import truth_at
from umbel.federation.door import Cohort, Federation


@dataclass(frozen=True)
class Oracle(Algorithm):
    """Federated averaging inside given groups."""

    truth: tuple[int, ...] = ()  # group of each client at the start; filled in from the scenario
    truth_changes: tuple[tuple[int, int, int], ...] = ()  # (round, client, group) by round; filled in as well
    local: Local = training()

    name: ClassVar[str] = "oracle"
    meanings: ClassVar[str] = "told"
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
        """FedAvg in each group, as the groups are in this round."""
        return clustered_round(fed, self._as_in(state, cohort.round), cohort, self.local, server=self.server_rule)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """A newcomer joins its true group."""
        state = self._as_in(state, newcomers.round)
        labels = state.labels.clone()
        labels[newcomers.ids] = torch.tensor(self._groups(newcomers.round))[newcomers.ids]
        return replace(state, labels=labels)

    def _groups(self, round: int) -> tuple[int, ...]:
        return truth_at(self.truth, self.truth_changes, round)

    def _as_in(self, state: State, round: int) -> State:
        """Everybody who was placed is where it truly belongs in this round.

        A group that was not there before starts from the model that the first of its members had.
        """
        groups = self._groups(round)
        for new in range(tree.count(state.models), max(groups) + 1):
            founder = groups.index(new) if new in groups else 0
            had = int(state.labels[founder])
            state = state.grow(tree.take(state.models, had if had >= 0 else self.truth[founder]))
        return replace(state, labels=torch.where(state.labels >= 0, torch.tensor(groups), -1))
