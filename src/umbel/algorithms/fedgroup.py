"""FedGroup: group some clients by decomposed cosine similarity of their first updates; others join as they come.

Duan et al. FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering. ISPA 2021.
https://arxiv.org/abs/2010.06870
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, clustered_round, number, one_cluster
from umbel.algorithms.centres import centred, join_nearest
from umbel.algorithms.oneshot import updates
from umbel.clustering.flat import kmeans
from umbel.clustering.proximity import cosine
from umbel.data.clients import Work
from umbel.federation import tasks
from umbel.federation.door import Cohort, Federation
from umbel.seeds import key
from umbel.tree import Params


@dataclass(frozen=True)
class FedGroup(Algorithm):
    """Euclidean distance of decomposed cosine similarity (EDC), k-means, cold start of newcomers."""

    clusters: int = number(2, ge=1)  # m
    sample: int = number(20, ge=1)  # clients that are asked first, for each cluster
    steps: int = number(50, ge=1)  # batches of the first training
    local: Local = Local()

    def init(self, fed: Federation, seed: int) -> State:
        """Group 20 k clients; the rest stay unplaced and are admitted when they are met."""
        state = one_cluster(fed, seed)
        anchor = tree.take(state.models, 0)
        there = fed.online.nonzero().flatten().tolist()
        first = sorted(there, key=lambda i: key(seed, "fedgroup", fed.names[i]))[: self.sample * self.clusters]
        who, moved = self._updates(fed, torch.tensor(sorted(first)), anchor)
        directions = torch.linalg.svd(moved, full_matrices=False).Vh[: self.clusters]  # V: (m, d)
        found, _ = kmeans(1 - cosine(moved, directions), self.clusters, seed)  # EDC: cosines with the directions
        labels = torch.full((len(fed.names),), -1)
        labels[who], evidence = centred(fed, who, moved, found, anchor, cosine)
        return State(tree.cat([state.models] * len(evidence["centres"])), labels, evidence)

    def _updates(self, fed: Federation, ids: Tensor, anchor: Params) -> tuple[Tensor, Tensor]:
        heard = fed.map(tasks.train, Cohort(ids, 0, "signature"), shared={"model": anchor}, keep=False,
                        work=Work(steps=self.steps, batch=self.local.batch), **self.local.options)
        return heard.ids, updates(heard, anchor).double()

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg in each group."""
        return clustered_round(fed, state, cohort, self.local)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """The first training, then the group whose mean update points the same way."""
        who, moved = self._updates(fed, newcomers.ids, tree.to(state.evidence["anchor"], fed.device))
        return join_nearest(fed, state, who, moved, cosine)
