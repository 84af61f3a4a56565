"""FedAvg: one model for all; clients train it, the server averages by size.

McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.
https://arxiv.org/abs/1602.05629
"""

from dataclasses import dataclass
from typing import ClassVar

from umbel.algorithms.base import Algorithm, Local, State, clustered_round, one_cluster, training
from umbel.algorithms.server import SERVERS
from umbel.federation.door import Cohort, Federation


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging."""

    local: Local = training()

    name: ClassVar[str] = "fedavg"
    servers: ClassVar[tuple[str, ...]] = SERVERS

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """w <- sum n_i w_i / sum n_i."""
        return clustered_round(fed, state, cohort, self.local, server=self.server_rule)
