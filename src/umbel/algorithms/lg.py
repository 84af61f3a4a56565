"""LG-FedAvg: some layers are shared and averaged, the others stay with each client.

Liang et al. Think Locally, Act Globally: Federated Learning with Local and Global Representations. 2020.
https://arxiv.org/abs/2001.01523
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from umbel.algorithms.base import Algorithm, Local, State, clustered_round, one_cluster, training
from umbel.algorithms.server import SERVERS
from umbel.federation.door import Cohort, Federation
from umbel.federation.tasks import SIZE, Client, Loop, Plain, Reply, a_model, like, register
from umbel.federation.training import TRAINING, begin_training, send_model, train_step
from umbel.fields import choice, number
from umbel.nets.model import Model
from umbel.tree import Params, Tree


def _first_model(net: Model, seed: int) -> Tree:
    return {"last": net.init(seed)}


def _begin(net: Model, client: Client, *, model: Params, **options: Any) -> tuple[Tree, Tree]:
    return begin_training(net, client, model={**client.memory["last"], **model}, **options)


def _shared(net: Model, *, send: tuple[str, ...], **_: Any) -> Tree:
    whole = like(net.shapes)
    return {"model": {name: whole[name] for name in send}, "size": SIZE}


def _merge(net: Model, client: Client, *, model: Params, **_: Any) -> Reply:
    return Reply({"model": {**client.memory["last"], **model}, "size": client.size})


merged_train = register(Loop("merged_train", _begin, train_step, send_model, answers=_shared, memory=_first_model,
                             options=TRAINING))
merged = register(Plain("merged", _merge, answers=a_model, memory=_first_model))
"""The client's own layers with the shared ones that it was sent."""


@dataclass(frozen=True)
class LGFedAvg(Algorithm):
    """Local and global layers.

    PACFL's reading, the default: the last two layers are global and the rest local. The original's code for CIFAR keeps
    the first ones global instead: `end="first"`. Every client starts from the same random model.
    """

    layers: int = number(2, ge=1)  # how many are global; more than there are = FedAvg
    end: str = choice("last", "last", "first")
    local: Local = training()

    name: ClassVar[str] = "lg"
    servers: ClassVar[tuple[str, ...]] = SERVERS
    own: ClassVar[tuple[str, ...]] = ("merged",)
    headline: ClassVar[str] = "last_local"
    has_cluster_model: ClassVar[bool] = False
    private_norms: ClassVar[bool] = False

    def personal(self, sent: Params, kept: Tree) -> Params:
        """The client's own layers with the shared ones."""
        return {**kept["last"], **sent}

    def names(self, net: Model) -> tuple[str, ...]:
        """Parameters of the global layers."""
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in net.trained))
        chosen = layers[-self.layers :] if self.end == "last" else layers[: self.layers]
        return tuple(name for name in net.shapes if name.rpartition(".")[0] in chosen)

    def init(self, fed: Federation, seed: int) -> State:
        """The global layers of one random model."""
        state = one_cluster(fed, seed)
        return replace(state, models={name: state.models[name] for name in self.names(fed.net)})

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg of the global layers; the local ones never travel."""
        return clustered_round(fed, state, cohort, self.local, merged_train, server=self.server_rule,
                               send=self.names(fed.net), keep=True)
