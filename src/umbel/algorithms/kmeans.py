"""Server-side clustering: after some rounds of FedAvg, k-means of the clients' weights, then FedAvg per cluster.

Ghosh et al. Robust Federated Learning in a Heterogeneous Environment. 2019. https://arxiv.org/abs/1906.06629
As in: Ben Ali et al. Comparative Evaluation of Clustered Federated Learning Method. FLTA 2024.
https://hal.science/hal-04741739
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from umbel import tree
from umbel.algorithms.base import (
    Algorithm,
    Local,
    State,
    averaged,
    clustered_round,
    everyone,
    name_order,
    one_cluster,
    train_from_clusters,
    training,
)
from umbel.algorithms.centres import join_by_weights
from umbel.algorithms.server import SERVERS
from umbel.clustering.grouping import kmeans
from umbel.federation.door import Cohort, Federation, Heard
from umbel.federation.phases import CLUSTERING
from umbel.fields import number
from umbel.tree import Stack


@dataclass(frozen=True)
class KMeans(Algorithm):
    """k-means on locally trained weights, once, after `pretrain` rounds."""

    clusters: int = number(4, ge=1)  # k, given
    pretrain: int = number(20, ge=1)
    local: Local = training()

    name: ClassVar[str] = "kmeans"
    servers: ClassVar[tuple[str, ...]] = SERVERS

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg with everybody; the last such round's answers are clustered; then FedAvg in each cluster."""
        if "centres" in state.evidence:
            return clustered_round(fed, state, cohort, self.local, server=self.server_rule)
        heard = train_from_clusters(fed, state, everyone(fed, cohort), self.local)
        sent, state = state.models, averaged(fed, state, heard, self.server_rule)
        return self.cluster(fed, state, sent, heard) if cohort.round >= self.pretrain - 1 else state

    def cluster(self, fed: Federation, state: State, sent: Stack, heard: Heard) -> State:
        """k-means of the flat weights; every cluster starts from the global model."""
        points = tree.flat(heard.answers["model"], fed.net.trained)
        labels = torch.full_like(state.labels, -1)
        with fed.timing(CLUSTERING):
            made = kmeans(points, self.clusters, fed.seed, name_order(fed, heard.ids))
        labels[heard.ids] = made.labels
        grown = state.grow(tree.take(state.models, 0), len(made.evidence["centres"]) - 1)
        evidence = made.evidence | {"anchor": tree.to(tree.take(sent, 0), "cpu")}
        return replace(grown, labels=labels, evidence=evidence, slots={})  # all start alike

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """Train from the model that the others' weights came from; join the nearest centre."""
        if "centres" not in state.evidence:
            return super().admit(fed, state, newcomers)
        return join_by_weights(fed, state, newcomers, self.local, self.pretrain - 1)
