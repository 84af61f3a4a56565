"""FedProx: FedAvg whose clients are held near the model they were sent.

Li et al. Federated Optimization in Heterogeneous Networks. MLSys 2020. https://arxiv.org/abs/1812.06127
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, clustered_round, one_cluster, training
from umbel.algorithms.server import SERVERS
from umbel.federation.door import Cohort, Federation
from umbel.federation.tasks import Client, Loop, register
from umbel.federation.training import TRAINING, begin_training, descend, noted, private, send_model
from umbel.fields import number
from umbel.nets.model import Batch, Model
from umbel.tree import Params, Tree


def _begin(net: Model, client: Client, *, model: Params, **options: Any) -> tuple[Tree, Tree]:
    carry, _ = begin_training(net, client, model=model, **options)
    return carry, {"anchor": model}  # w_g, which stays while w moves


def _step(net: Model, carry: Tree, fixed: Tree, batch: Batch, *, mu: float, **options: Any) -> Tree:
    model = carry["model"]
    slope, statistics = net.gradient_and_statistics(model, batch)
    pull = tree.minus(tree.part(model, slope), fixed["anchor"])  # gradient of ||w - w_g||^2 / 2
    return noted(descend(net, carry, tree.plus(slope, pull, mu), **options), statistics)


proximal_train = register(Loop("proximal_train", _begin, _step, send_model, options=(*TRAINING, "mu")))
register(private(proximal_train))


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Federated averaging with a proximal term, F_i(w) + mu/2 ||w - w_g||^2."""

    mu: float = number(0.01, ge=0)  # PACFL tries 0.01 and 0.001, CFLGT uses 0.001
    local: Local = training()

    name: ClassVar[str] = "fedprox"
    servers: ClassVar[tuple[str, ...]] = SERVERS

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg's round with another local step."""
        return clustered_round(fed, state, cohort, self.local, proximal_train, server=self.server_rule, mu=self.mu)
