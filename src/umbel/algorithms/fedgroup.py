"""FedGroup: group some clients by decomposed cosine similarity of their first updates; others join as they come.

Duan et al. FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering. ISPA 2021.
https://arxiv.org/abs/2010.06870
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import (
    Algorithm,
    Local,
    State,
    clustered_round,
    name_order,
    one_cluster,
    train_to_describe,
    training,
)
from umbel.algorithms.centres import join_nearest
from umbel.algorithms.oneshot import updates
from umbel.algorithms.server import SERVERS
from umbel.clustering.flat import kmeans
from umbel.clustering.grouping import centred
from umbel.clustering.labels import canonical
from umbel.clustering.proximity import cosine
from umbel.data.clients import STEPS
from umbel.federation.door import Cohort, Federation
from umbel.federation.phases import CLUSTERING, SIGNATURE
from umbel.fields import number
from umbel.seeds import key
from umbel.tree import Params


@dataclass(frozen=True)
class FedGroup(Algorithm):
    """Euclidean distance of decomposed cosine similarity (EDC), k-means, cold start of newcomers."""

    clusters: int = number(2, ge=1)  # m
    sample: int = number(20, ge=1)  # clients that are asked first, for each cluster
    steps: int = number(50, ge=1, le=STEPS)  # batches of the first training
    local: Local = training()

    name: ClassVar[str] = "fedgroup"
    servers: ClassVar[tuple[str, ...]] = SERVERS

    def init(self, fed: Federation, seed: int) -> State:
        """Group 20 k clients; the rest stay unplaced and are admitted when they are met."""
        state = one_cluster(fed, seed)
        anchor = tree.take(state.models, 0)
        there = fed.online.nonzero().flatten().tolist()
        first = sorted(there, key=lambda i: key(seed, "fedgroup", fed.names[i]))[: self.sample * self.clusters]
        who, changes = self._updates(fed, torch.tensor(sorted(first)), anchor)
        labels = torch.full((len(fed.names),), -1)
        with fed.timing(CLUSTERING):
            directions = torch.linalg.svd(changes, full_matrices=False).Vh[: self.clusters]  # V: (m, d)
            groups, _ = kmeans(1 - cosine(changes, directions), self.clusters, seed)  # EDC: cosines with the directions
            made = centred(changes, canonical(groups, name_order(fed, who)), cosine)
        labels[who] = made.labels
        grown = state.grow(anchor, len(made.evidence["centres"]) - 1)
        return replace(grown, labels=labels, evidence=made.evidence | {"anchor": tree.to(anchor, "cpu")})

    def _updates(self, fed: Federation, ids: Tensor, anchor: Params) -> tuple[Tensor, Tensor]:
        heard = train_to_describe(fed, Cohort(ids, 0, SIGNATURE), self.local, anchor,
                                  self.local.work._replace(steps=self.steps))
        return heard.ids, updates(fed, heard, anchor).double()

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg in each group."""
        return clustered_round(fed, state, cohort, self.local, server=self.server_rule)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """The first training, then the group whose mean update points the same way."""
        who, changes = self._updates(fed, newcomers.ids, tree.to(state.evidence["anchor"], fed.device))
        return join_nearest(state, who, changes, cosine)
