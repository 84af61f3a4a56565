"""FedSEM: k centres; in every round a client joins the centre nearest to its local model, and centres follow.

Xie et al. Multi-Center Federated Learning. 2021. https://arxiv.org/abs/2108.08647
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, name_order, one_cluster, train_from_clusters, training
from umbel.algorithms.centres import join_by_weights
from umbel.clustering.grouping import kmeans
from umbel.clustering.proximity import euclidean
from umbel.federation.door import Cohort, Federation
from umbel.federation.phases import CLUSTERING
from umbel.fields import number


@dataclass(frozen=True)
class FedSEM(Algorithm):
    """Stochastic expectation maximisation over weights: E, nearest centre in L2; M, mean of the members.

    Centres begin as k-means of the first round's local models (the original: Lloyd steps from the first k clients).
    Members are averaged without weights, as printed; `weighted=True` takes sizes. `freeze` fixes the clusters after
    that many rounds, as CFLGT's comparison does.
    """

    clusters: int = number(2, ge=1)  # K
    weighted: bool = False
    freeze: int = number(0, ge=0)  # 0 = never
    local: Local = training()

    name: ClassVar[str] = "fedsem"
    meanings: ClassVar[str] = "by weights"
    servers_because: ClassVar[str] = "its centres are the means of their members"
    aggregates: ClassVar[bool] = True

    def init(self, fed: Federation, seed: int) -> State:
        """One random model, until the first local models are there."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """Train from the own centre; E-step; M-step."""
        heard = train_from_clusters(fed, state, cohort, self.local)
        points, ends = tree.flat(heard.answers["model"], fed.net.trained), heard.answers["model"]
        size = heard.answers["size"] if self.weighted else torch.ones(len(heard.ids))
        labels = state.labels.clone()
        if "anchor" not in state.evidence:
            first = tree.take(state.models, 0)
            labels = torch.full_like(labels, -1)  # who was not asked is placed by `admit`
            with fed.timing(CLUSTERING):
                made = kmeans(points, self.clusters, fed.seed, name_order(fed, heard.ids))
            labels[heard.ids] = made.labels
            state = replace(state.grow(first, len(made.evidence["centres"]) - 1),
                            evidence=made.evidence | {"anchor": tree.to(first, "cpu")})
        elif not self.freeze or cohort.round < self.freeze:
            centres = tree.flat(tree.part(state.models, ends), fed.net.trained)
            labels[heard.ids] = euclidean(points, centres).argmin(1)
        models = self.server_rule.as_one(ends, labels[heard.ids], size, state.models)
        return replace(state, models=models, labels=labels)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """Train from the first model; join the nearest of the first centres, since these began there too."""
        if "anchor" not in state.evidence:
            return super().admit(fed, state, newcomers)
        return join_by_weights(fed, state, newcomers, self.local)
