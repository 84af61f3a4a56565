"""FedSoft: clients belong to all clusters at once, by shares, and train one model of their own near all centres.

Ruan & Joe-Wong. FedSoft: Soft Clustered Federated Learning with Proximal Local Updating. AAAI 2022.
https://arxiv.org/abs/2112.06053
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, training
from umbel.clustering.signatures import votes
from umbel.federation.door import Cohort, Federation
from umbel.federation.tasks import Client, Loop, register
from umbel.federation.training import TRAINING, begin_training, descend, noted, send_model
from umbel.fields import number
from umbel.nets.model import Batch, Model
from umbel.tree import Params, Stack, Tree


def _begin(net: Model, client: Client, *, models: Stack, share: Tensor, **options: Any) -> tuple[Tree, Tree]:
    carry, _ = begin_training(net, client, model=client.memory["last"], **options)
    target = tree.each(lambda leaf: torch.tensordot(share.to(leaf.dtype), leaf, dims=1), models)  # sum_s u_s c_s
    return carry, {"target": target, "weight": share.sum().to(torch.float32)}


def _step(net: Model, carry: Tree, fixed: Tree, batch: Batch, *, pull: float, **options: Any) -> Tree:
    model = carry["model"]
    slope, statistics = net.gradient_and_statistics(model, batch)
    away = {name: fixed["weight"] * model[name] - fixed["target"][name] for name in slope}  # sum_s u_s (w - c_s)
    return noted(descend(net, carry, tree.plus(slope, away, pull), **options), statistics)


def _first_model(net: Model, seed: int) -> Tree:
    return {"last": net.init(seed)}


soft_train = register(Loop("soft_train", _begin, _step, send_model, memory=_first_model, options=(*TRAINING, "pull")))


@dataclass(frozen=True)
class SoftState(State):
    """With the share of each cluster in each client."""

    share: Tensor = torch.zeros(0, 0, dtype=torch.float64)  # u, (n, k)


@dataclass(frozen=True)
class FedSoft(Algorithm):
    """Proximal local training near a mixture of centres: f_i(w) + lambda/2 sum_s u_is ||w - c_s||^2.

    The paper draws clients for every cluster anew; here the round's cohort serves all clusters, and a centre is the
    mean of its members' models weighted by v_si ~ u_is n_i.
    """

    clusters: int = number(2, ge=1, le=1000)  # S
    pull: float = number(0.1, ge=0)  # lambda
    every: int = number(2, ge=1)  # tau: rounds between two estimates of the shares
    least: float = number(1e-4, gt=0)  # sigma: the share of a cluster that no row votes for
    local: Local = training()

    name: ClassVar[str] = "fedsoft"
    meanings: ClassVar[str] = "by loss"
    servers_because: ClassVar[str] = "its centres are means by shares of all clients"
    state: ClassVar[type[State]] = SoftState
    own: ClassVar[tuple[str, ...]] = ("remembered",)
    headline: ClassVar[str] = "last_local"
    private_norms: ClassVar[bool] = False

    def personal(self, sent: Params, kept: Tree) -> Params:
        """Its own model, which was trained near all centres."""
        last: Params = kept.get("last", sent)
        return last

    @property
    def tells(self) -> tuple[str, ...]:
        """How many rows each model fits best."""
        return ("scores",)

    def init(self, fed: Federation, seed: int) -> State:
        """S random centres; a client's own model starts from the common first one."""
        models = tree.to(tree.stack([fed.net.init(seed + s) for s in range(self.clusters)]), fed.device)
        n = len(fed.names)
        return SoftState(models, torch.full((n,), -1), share=torch.zeros(n, self.clusters, dtype=torch.float64))

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """Every tau rounds the cohort estimates its shares; then all train near their centres."""
        state = self.admit(fed, state, cohort) if cohort.round and cohort.round % self.every == 0 else state
        assert isinstance(state, SoftState)
        heard = fed.map(soft_train, cohort, work=self.local.work, shared={"models": state.models},
                        each={"share": state.share[cohort.ids]}, pull=self.pull, **self.local.at(cohort.round))
        vote = state.share[heard.ids].T * heard.answers["size"]  # (S, m), v before it sums to one
        return replace(state, models=tree.mix(heard.answers["model"], vote / vote.sum(1, keepdim=True)))

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """u_is: the share of rows that centre s fits best; the label is the largest."""
        assert isinstance(state, SoftState)
        heard = fed.map(votes, newcomers, shared={"models": state.models}, k=self.clusters)
        share = heard.answers["votes"].double() / heard.answers["size"].clamp(min=1)[:, None]
        grown = torch.zeros(len(fed.names), self.clusters, dtype=torch.float64)
        grown[: len(state.share)] = state.share
        grown[heard.ids] = torch.where(share > 0, share, self.least)
        labels = state.labels.clone()
        labels[heard.ids] = grown[heard.ids].argmax(1)
        return replace(state, labels=labels, share=grown)
