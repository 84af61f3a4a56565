"""FedNova: average normalised updates, so that clients with more steps do not pull harder.

Wang et al. Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization. NeurIPS 2020.
https://arxiv.org/abs/2007.07481
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, averaged, one_cluster, train_from_clusters, training
from umbel.federation.door import Cohort, Federation
from umbel.federation.tasks import COUNT, STEPS, Client, Loop, Of, Reply, a_model, register
from umbel.federation.training import TRAINING, begin_training, private, send_model, train_step
from umbel.nets.model import Model
from umbel.tree import Tree


def _finish(net: Model, client: Client, carry: Tree, fixed: Tree, **options: Any) -> Reply:
    sent, kept = send_model(net, client, carry, fixed, **options)
    return Reply({**sent, "steps": client.steps}, kept)


def _counted(net: Model, **options: Any) -> Tree:
    return {**a_model(net), "steps": COUNT._replace(most=Of(STEPS))}


counted_train = register(Loop("counted_train", begin_training, train_step, _finish, answers=_counted,
                              options=TRAINING))
register(private(counted_train))


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Federated averaging of updates per effective step."""

    local: Local = training()

    name: ClassVar[str] = "fednova"
    optimisers: ClassVar[tuple[str, ...]] = ("sgd",)
    optimisers_because: ClassVar[str] = "a step's length is known of sgd's momentum alone"
    servers_because: ClassVar[str] = "it has a server's step of its own"

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """d_i = (w_g - w_i) / a_i;  w_g <- w_g - (sum p_i a_i) sum p_i d_i."""
        heard = train_from_clusters(fed, state, cohort, self.local, counted_train)
        share = heard.answers["size"].double() / heard.answers["size"].sum().clamp(min=1)  # p_i
        length = self._length(heard.answers["steps"].double()).clamp(min=1)  # a_i
        weights = ((share @ length) * share / length)[None]  # tau_eff p_i / a_i
        normalised = tree.without(heard.answers["model"], fed.net.statistics)
        mean = tree.mix(normalised, weights)
        models = tree.each(lambda old, new: (1 - float(weights.sum())) * old + new,
                           tree.part(state.models, normalised), mean)
        return replace(state, models={**averaged(fed, state, heard).models, **models})  # statistics take no steps

    def _length(self, steps: Tensor) -> Tensor:
        """a_i: what tau steps with momentum rho add up to, [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)."""
        rho = self.local.momentum
        return (steps - rho * (1 - torch.pow(torch.tensor(rho), steps)) / (1 - rho)) / (1 - rho)
