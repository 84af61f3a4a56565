"""FedBN: FedAvg whose clients keep their BatchNorm layers, so that features of unlike data stay comparable.

Li et al. FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021.
https://arxiv.org/abs/2102.07623
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from umbel.algorithms.base import Algorithm, Local, State, clustered_round, one_cluster, training
from umbel.algorithms.server import SERVERS
from umbel.federation.door import Cohort, Federation


@dataclass(frozen=True)
class FedBN(Algorithm):
    """Federated averaging of all but BatchNorm's weights, biases and running statistics.

    It is FedAvg with `Local(norms="private")`, which other methods that average in clusters take as well; here norms
    are always private.
    """

    local: Local = training(norms="private")

    name: ClassVar[str] = "fedbn"
    servers: ClassVar[tuple[str, ...]] = SERVERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "local", replace(self.local, norms="private"))
        super().__post_init__()

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """w <- sum n_i w_i / sum n_i, of what is no BatchNorm layer."""
        return clustered_round(fed, state, cohort, self.local, server=self.server_rule)
