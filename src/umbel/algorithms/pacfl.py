"""PACFL: cluster once, before training, by the angles between clients' data subspaces.

Vahidian et al. Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles
Between Client Data Subspaces. AAAI 2023. https://arxiv.org/abs/2209.10526
"""

from dataclasses import dataclass

from torch import Tensor

from umbel.algorithms.base import Local, choice, number
from umbel.algorithms.oneshot import CUTS, OneShot, unragged
from umbel.clusterers import LINKAGES
from umbel.federation import Cohort, Federation
from umbel.proximity import ANGLES
from umbel.signatures import class_vectors, principal_vectors
from umbel.tree import Params, Ragged, Tree


@dataclass(frozen=True)
class PACFL(OneShot):
    """Principal angles between data subspaces.

    Departures. The paper takes the smallest angle (Eq. 2) and a threshold tuned per data set; its code one SVD per
    class, the smallest angle between columns, and WPGMA: `angle="smallest"`, or `per_class=True, angle="column",
    linkage="weighted"`, with `cut="value"`. Our defaults need no threshold: the mean of the angles tells data sets
    apart that share one direction, and the best silhouette gives their number.
    """

    rank: int = number(3, ge=1)  # p
    per_class: bool = False
    angle: str = choice("mean", *ANGLES)
    linkage: str = choice("average", *LINKAGES)
    cut: str = choice("silhouette", *CUTS)
    clusters: int = number(2, ge=1)
    threshold: float = number(10.0, ge=0)  # degrees
    local: Local = Local()

    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """U_p: the leading left singular vectors of the client's data, or of each of its classes."""
        heard = fed.map(class_vectors if self.per_class else principal_vectors, cohort, rank=self.rank)
        return heard.ids, unragged("basis", heard.answers["basis"])

    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """Phi(U_i, U_j) in degrees."""
        return ANGLES[self.angle](*(Ragged(side["basis"], side["basis_length"]) for side in (a, b)))
