"""PACFL: cluster once, before training, by the angles between clients' data subspaces.

Vahidian et al. Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles
Between Client Data Subspaces. AAAI 2023. https://arxiv.org/abs/2209.10526
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local, State, training
from umbel.algorithms.oneshot import SIGNATURE_ROUND, OneShot, subspaces, unragged
from umbel.clustering.cuts import BY_DISTANCE, by_value
from umbel.clustering.grouping import joined
from umbel.clustering.labels import overlapping
from umbel.clustering.linkage import LINKAGES, linkage
from umbel.clustering.proximity import ANGLES, symmetric
from umbel.clustering.signatures import MOST_RANK, SIGNATURES
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation
from umbel.federation.phases import CLUSTERING, SIGNATURE
from umbel.fields import choice, number
from umbel.tree import Params, Ragged, Tree


@dataclass(frozen=True)
class PACFL(OneShot):
    """Principal angles between data subspaces.

    Departures. The paper takes the smallest angle (Eq. 2) and a threshold tuned per data set; its code one SVD per
    class, the smallest angle between columns, and WPGMA: `angle="smallest"`, or `per_class=True, angle="column",
    linkage="weighted"`, with `cut="value"`. Our defaults need no threshold: the mean of the angles tells data sets
    apart that share one direction, and the best silhouette gives their number.
    """

    rank: int = number(3, ge=1, le=MOST_RANK)  # p
    signature: str = choice("auto", "auto", *SIGNATURES)  # what a row is as a vector; auto: by the kind of data
    per_class: bool = False
    angle: str = choice("mean", *ANGLES)
    linkage: str = choice("average", *LINKAGES)
    cut: str = choice("silhouette", *BY_DISTANCE)
    clusters: int = number(2, ge=1)
    threshold: float = number(10.0, ge=0)  # degrees
    recluster: bool = False  # newcomers: extend the matrix and cut it anew (PME), instead of joining the nearest
    landmarks: int = number(0, ge=0)  # clients in the dendrogram, by which the others are placed; 0 = everybody
    local: Local = training()

    name: ClassVar[str] = "pacfl"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recluster and self.landmarks:
            raise UmbelError("The 'recluster' of pacfl needs the distances of all clients, so 'landmarks' must be 0."
                             f" Got {self.landmarks} instead: leave one of the two out.")

    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """U_p: the leading left singular vectors of the client's data, or of each of its classes."""
        heard = subspaces(fed, cohort, self.local, anchor, self.signature, self.per_class, rank=self.rank)
        return heard.ids, unragged("basis", heard.answers["basis"])

    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """Phi(U_i, U_j) in degrees."""
        return ANGLES[self.angle](*(Ragged(side["basis"], side["basis_length"]) for side in (a, b)))

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """Join the nearest cluster; or, by `recluster`, extend the proximity matrix (Alg. 2) and cut it as before.

        A new cut may move old clients: the clusters keep the labels, and so the models, of most of their old members.
        """
        evidence = state.evidence
        if not self.recluster:
            return super().admit(fed, state, newcomers)
        asked = newcomers._replace(round=SIGNATURE_ROUND, phase=SIGNATURE)
        who, new = self.describe(fed, asked, tree.to(evidence["anchor"], fed.device))
        strangers = ~torch.isin(who, evidence["who"])
        who, new = who[strangers], tree.take(new, strangers)
        across, among = self.apart(new, evidence["signature"], evidence), self.apart(new, new, evidence)
        above, below = torch.cat([evidence["proximity"], across.T], 1), torch.cat([across, among], 1)
        distance = symmetric(torch.cat([above, below]))
        everybody = torch.cat([evidence["who"], who])
        with fed.timing(CLUSTERING):
            links = linkage(distance, self.linkage)
            groups = overlapping(by_value(links, float(evidence["cut"])).labels, state.labels[everybody])
        labels = state.labels.clone()
        labels[everybody] = groups
        grown = {"who": everybody, "signature": joined(evidence["signature"], new), "proximity": distance,
                 "linkage": links}
        state = state.grow(evidence["anchor"], max(0, int(groups.max()) + 1 - tree.count(state.models)))
        return replace(state, labels=labels, evidence=evidence | grown)
