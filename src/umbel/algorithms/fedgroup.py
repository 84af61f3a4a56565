"""FedGroup: group some clients by decomposed cosine similarity of their first updates; others join as they come.

Duan et al. FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering. ISPA 2021.
https://arxiv.org/abs/2010.06870
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms import alike
from umbel.algorithms.alike import PartsSettings
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
from umbel.algorithms.halves import halved
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
class FedGroup(PartsSettings, Algorithm):
    """Euclidean distance of decomposed cosine similarity (EDC), k-means, cold start of newcomers.

    The paper is given m. Where it is not, EDC and 2-means part clients in two (m = 2), and each half again, as long as
    tests of parts of rows tell its members apart. Then everybody is asked first: no number of clusters says how many
    are enough, and each would be asked for the same when it is met.
    """

    clusters: int = number(0, ge=0)  # m; 0 = found
    sample: int = number(20, ge=1)  # clients that are asked first, for each cluster; where m is found, all are
    steps: int = number(50, ge=1, le=STEPS)  # batches of the first training
    local: Local = training()

    name: ClassVar[str] = "fedgroup"
    meanings: ClassVar[str] = "by update"
    servers: ClassVar[tuple[str, ...]] = SERVERS

    @property
    def tells(self) -> tuple[str, ...]:
        """Parts of rows, where it finds the number of clusters."""
        return () if self.clusters else alike.PARTS_TELL

    def init(self, fed: Federation, seed: int) -> State:
        """Group m x `sample` clients; the rest stay unplaced and are admitted when they are met."""
        state = one_cluster(fed, seed)
        anchor = tree.take(state.models, 0)
        there = sorted(fed.online.nonzero().flatten().tolist(), key=lambda i: key(seed, "fedgroup", fed.names[i]))
        first = there[: self.sample * self.clusters or len(there)]
        who, changes = self._updates(fed, torch.tensor(sorted(first)), anchor)
        if self.clusters:
            labels = torch.full((len(fed.names),), -1)
            with fed.timing(CLUSTERING):
                groups, _ = kmeans(_edc(changes, self.clusters), self.clusters, seed)
                made = centred(changes, canonical(groups, name_order(fed, who)), cosine)
            labels[who], evidence = made.labels, made.evidence
        else:
            labels, evidence = halved(fed, who, changes, self.local, anchor, self.signature, lambda some: _edc(some, 2))
        grown = state.grow(anchor, int(labels.max()))
        return replace(grown, labels=labels, evidence=evidence | {"anchor": tree.to(anchor, "cpu")})

    def _updates(self, fed: Federation, ids: Tensor, anchor: Params) -> tuple[Tensor, Tensor]:
        heard = train_to_describe(fed, Cohort(ids, 0, SIGNATURE), self.local, anchor,
                                  self.local.work._replace(steps=self.steps))
        return heard.ids, updates(fed, heard, anchor).double()

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg in each group."""
        return clustered_round(fed, state, cohort, self.local, server=self.server_rule)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """The first training, then the group whose mean update points the same way; or by tests, as found."""
        if "parts" in state.evidence:
            return alike.join(fed, state, newcomers, self.local, self.signature)
        who, changes = self._updates(fed, newcomers.ids, tree.to(state.evidence["anchor"], fed.device))
        return join_nearest(state, who, changes, cosine)

    def why(self, state: State) -> str:
        """What tests said, where they were asked."""
        return alike.why(state) if "test" in state.evidence else ""


def _edc(changes: Tensor, directions: int) -> Tensor:
    """One minus the cosines of updates (n, d) with their main directions V, (n, m)."""
    main = torch.linalg.svd(changes, full_matrices=False).Vh[:directions]  # V: (m, d)
    return 1 - cosine(changes, main)
