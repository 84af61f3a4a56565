"""FedAvg+FT: FedAvg whose clients fine-tune the final model on their own data before they use it.

The fair baseline for personalised and clustered methods. CFLGT's version changes the classifier layer only;
PACFL's and FedZoo-Bench's "+" changes all layers.
"""

from dataclasses import dataclass
from typing import ClassVar

from umbel.algorithms.base import Algorithm, Local, State, clustered_round, one_cluster, training
from umbel.algorithms.server import SERVERS
from umbel.federation.door import Cohort, Federation
from umbel.fields import choice


@dataclass(frozen=True)
class FedAvgFT(Algorithm):
    """Federated averaging, judged after local fine-tuning."""

    local: Local = training()
    tuned_layers: str = choice("head", "head", "all")

    name: ClassVar[str] = "fedavg-ft"
    servers: ClassVar[tuple[str, ...]] = SERVERS
    headline: ClassVar[str] = "fine_tuned"

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """As FedAvg; the tuning happens where clients are scored."""
        return clustered_round(fed, state, cohort, self.local, server=self.server_rule)
