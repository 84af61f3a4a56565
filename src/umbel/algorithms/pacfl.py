"""PACFL: cluster once, before training, by the angles between clients' data subspaces.

Vahidian et al. Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles
Between Client Data Subspaces. AAAI 2023. https://arxiv.org/abs/2209.10526
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.alike import SIGNATURE_ROUND
from umbel.algorithms.base import Local, State, training
from umbel.algorithms.oneshot import OneShot, as_classwise, classwise, subspaces, unragged
from umbel.clustering.cuts import BY_DISTANCE, by_value
from umbel.clustering.grouping import joined
from umbel.clustering.labels import overlapping
from umbel.clustering.linkage import LINKAGES, linkage
from umbel.clustering.proximity import ANGLES, symmetric, union_angle
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
    linkage="weighted"`, with `cut="value"`. By default, "union", clients are compared class by class, since a smallest
    angle makes clients equal that share one label, and a subspace of all rows turns with the shares of classes; where
    targets have no classes, by the mean angle of all rows. Their number is found by tests of parts of rows.
    """

    rank: int = number(3, ge=1, le=MOST_RANK)  # p; of each class alone the first counts, where angle is union
    signature: str = choice("auto", "auto", *SIGNATURES)  # what a row is as a vector; auto: by the kind of data
    per_class: bool = False
    angle: str = choice("auto", "auto", "union", *ANGLES)  # auto: union where targets have classes, else mean
    linkage: str = choice("average", *LINKAGES)
    cut: str = choice("tested", "tested", *BY_DISTANCE)
    clusters: int = number(2, ge=1)
    threshold: float = number(10.0, ge=0)  # degrees
    recluster: bool = False  # newcomers: extend the matrix and cut it anew (PME), instead of joining the nearest
    landmarks: int = number(0, ge=0)  # clients in the dendrogram, by which the others are placed; 0 = everybody
    local: Local = training()

    name: ClassVar[str] = "pacfl"
    meanings: ClassVar[str] = "by class; with another angle, by tests alone"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recluster and self.landmarks:
            raise UmbelError("The 'recluster' of pacfl needs the distances of all clients, so 'landmarks' must be 0."
                             f" Got {self.landmarks} instead: leave one of the two out.")
        if self.recluster and self.cut == "tested":
            raise UmbelError("The 'recluster' of pacfl cuts the tree anew where it was cut before, and 'tested' cuts at"
                             f" no one distance: set 'cut' as well, to {' or '.join(BY_DISTANCE)}.")

    @property
    def tells(self) -> tuple[str, ...]:
        """Its vectors at least."""
        return super().tells or ("signatures",)

    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """U_p: the leading left singular vectors of the client's data, or of each of its classes."""
        if self.angle == "union" or (self.angle == "auto" and fed.net.objective.groups > 1):
            return classwise(fed, cohort, self.local, anchor, self.signature, rank=1)
        heard = subspaces(fed, cohort, self.local, anchor, self.signature, self.per_class, rank=self.rank)
        return heard.ids, unragged("basis", heard.answers["basis"])

    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """Phi(U_i, U_j) in degrees."""
        if "counts" in a:
            return union_angle(as_classwise(a), as_classwise(b))
        angle = ANGLES["mean" if self.angle == "auto" else self.angle]
        return angle(*(Ragged(side["basis"], side["basis_length"]) for side in (a, b)))

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
