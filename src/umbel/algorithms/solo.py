"""SOLO: every client trains alone; nothing is shared but the first random model, which the seed gives."""

from dataclasses import dataclass
from typing import Any, ClassVar

from umbel.algorithms.base import Algorithm, Local, State, one_cluster, training
from umbel.federation.door import Cohort, Federation
from umbel.federation.tasks import SIZE, Client, Loop, Reply, register
from umbel.federation.training import STEP, begin_training, train_step
from umbel.nets.model import Model
from umbel.tree import Params, Tree


def _begin(net: Model, client: Client, **options: Any) -> tuple[Tree, Tree]:
    return begin_training(net, client, model=client.memory["last"], **options)


def _finish(net: Model, client: Client, carry: Tree, fixed: Tree, **_: Any) -> Reply:
    return Reply({"size": client.size}, keep={"last": carry["model"]})


def _first_model(net: Model, seed: int) -> Tree:
    return {"last": net.init(seed)}


def _only_size(net: Model, **_: Any) -> Tree:
    return {"size": SIZE}


train_alone = register(Loop("train_alone", _begin, train_step, _finish, answers=_only_size, memory=_first_model,
                            options=STEP))


@dataclass(frozen=True)
class Solo(Algorithm):
    """No federation: a round is `local.epochs` more epochs at every sampled client."""

    local: Local = training()

    name: ClassVar[str] = "solo"
    servers_because: ClassVar[str] = "every client trains alone"
    own: ClassVar[tuple[str, ...]] = ("remembered",)
    headline: ClassVar[str] = "last_local"
    has_cluster_model: ClassVar[bool] = False
    private_norms: ClassVar[bool] = False

    def personal(self, sent: Params, kept: Tree) -> Params:
        """Its own, after all its rounds; the common first one before."""
        last: Params = kept.get("last", sent)
        return last

    def init(self, fed: Federation, seed: int) -> State:
        """The model every client starts from, for those who never train."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """Train on, from where the client stopped."""
        fed.map(train_alone, cohort, work=self.local.work, **self.local.at(cohort.round))
        return state
