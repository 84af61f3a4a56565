"""FL+HC: after some rounds of FedAvg, cluster hierarchically by the clients' updates, then train inside clusters.

Briggs et al. Federated learning with hierarchical clustering of local updates to improve training on non-IID data.
IJCNN 2020. https://arxiv.org/abs/2004.11791
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local, State, averaged, everyone, train_from_clusters, train_to_describe, training
from umbel.algorithms.oneshot import OneShot, updates
from umbel.clustering.cuts import BY_DISTANCE
from umbel.clustering.linkage import LINKAGES
from umbel.clustering.proximity import DISTANCES
from umbel.federation.door import Cohort, Federation
from umbel.fields import choice, number
from umbel.tree import Params, Tree


@dataclass(frozen=True)
class FLHC(OneShot):
    """Hierarchical clustering of updates, by L1, L2 or cosine.

    The paper cuts at a threshold that it is given: `cut="value"`. By default tests of parts of rows say how deep.
    """

    pretrain: int = number(20, ge=1)
    metric: str = choice("l2", *DISTANCES)
    linkage: str = choice("average", *LINKAGES)
    cut: str = choice("tested", "tested", *BY_DISTANCE)
    clusters: int = number(2, ge=1)
    threshold: float = number(1.0, ge=0)
    landmarks: int = number(0, ge=0)  # clients in the dendrogram, by which the others are placed; 0 = everybody
    local: Local = training()

    name: ClassVar[str] = "flhc"
    meanings: ClassVar[str] = "by update"

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """As all one-shot methods, but the last pre-training round's own updates are clustered: no extra training."""
        if "who" in state.evidence or cohort.round < self.pretrain - 1:
            return super().round(fed, state, cohort)
        heard = train_from_clusters(fed, state, everyone(fed, cohort), self.local)
        anchor = tree.take(state.models, 0)
        state = averaged(fed, state, heard, self.server_rule)
        return self.group_by(fed, state, anchor, heard.ids, {"update": updates(fed, heard, anchor)})

    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """Delta_i, for newcomers: a local training from the model that the others were sent, at their rate."""
        heard = train_to_describe(fed, cohort, self.local, anchor, round=self.pretrain - 1)
        return heard.ids, {"update": updates(fed, heard, anchor)}

    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """Distance between updates."""
        return DISTANCES[self.metric](a["update"], b["update"])
