"""Server-side clustering: after some rounds of FedAvg, k-means of the clients' weights, then FedAvg per cluster.

Ghosh et al. Robust Federated Learning in a Heterogeneous Environment. 2019. https://arxiv.org/abs/1906.06629
As in: Ben Ali et al. Comparative Evaluation of Clustered Federated Learning Method. FLTA 2024.
https://hal.science/hal-04741739
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from umbel import tree
from umbel.algorithms import alike
from umbel.algorithms.alike import PartsSettings
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
from umbel.algorithms.halves import halved
from umbel.algorithms.server import SERVERS
from umbel.clustering.grouping import kmeans
from umbel.federation.door import Cohort, Federation, Heard
from umbel.federation.phases import CLUSTERING
from umbel.fields import number
from umbel.tree import Stack


@dataclass(frozen=True)
class KMeans(PartsSettings, Algorithm):
    """k-means on locally trained weights, once, after `pretrain` rounds.

    The paper is given k. Where it is not, 2-means parts all clients, and each half again, as long as tests of parts of
    rows tell its members apart.
    """

    clusters: int = number(0, ge=0)  # k; 0 = found
    pretrain: int = number(20, ge=1)
    local: Local = training()

    name: ClassVar[str] = "kmeans"
    meanings: ClassVar[str] = "by weights"
    servers: ClassVar[tuple[str, ...]] = SERVERS

    @property
    def tells(self) -> tuple[str, ...]:
        """Parts of rows, where it finds the number of clusters."""
        return () if self.clusters else alike.PARTS_TELL

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg with everybody; the last such round's answers are clustered; then FedAvg in each cluster."""
        if "anchor" in state.evidence:
            return clustered_round(fed, state, cohort, self.local, server=self.server_rule)
        heard = train_from_clusters(fed, state, everyone(fed, cohort), self.local)
        sent, state = state.models, averaged(fed, state, heard, self.server_rule)
        return self.cluster(fed, state, sent, heard) if cohort.round >= self.pretrain - 1 else state

    def cluster(self, fed: Federation, state: State, sent: Stack, heard: Heard) -> State:
        """k-means of the flat weights; every cluster starts from the global model."""
        points, anchor = tree.flat(heard.answers["model"], fed.net.trained), tree.take(sent, 0)
        if self.clusters:
            labels = torch.full_like(state.labels, -1)
            with fed.timing(CLUSTERING):
                made = kmeans(points, self.clusters, fed.seed, name_order(fed, heard.ids))
            labels[heard.ids], evidence = made.labels, made.evidence
        else:
            labels, evidence = halved(fed, heard.ids, points, self.local, anchor, self.signature)
        grown = state.grow(tree.take(state.models, 0), int(labels.max()))
        evidence = evidence | {"anchor": tree.to(anchor, "cpu")}
        return replace(grown, labels=labels, evidence=evidence, slots={})  # all start alike

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """Train from the model that the others' weights came from, join the nearest centre; or by tests, as found."""
        if "parts" in state.evidence:
            return alike.join(fed, state, newcomers, self.local, self.signature)
        if "centres" not in state.evidence:
            return super().admit(fed, state, newcomers)
        return join_by_weights(fed, state, newcomers, self.local, self.pretrain - 1)

    def why(self, state: State) -> str:
        """What tests said, where they were asked."""
        return alike.why(state) if "test" in state.evidence else ""
