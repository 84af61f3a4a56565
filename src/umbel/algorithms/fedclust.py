"""FedClust: cluster once by the classifier's weights after one local training from a common model.

Islam et al. FedClust: Optimizing Federated Learning on Non-IID Data through Weight-Driven Client Clustering. IPDPS
Workshops 2024. https://doi.org/10.1109/IPDPSW63119.2024.00200
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local, train_to_describe, training
from umbel.algorithms.oneshot import OneShot
from umbel.clustering.cuts import BY_DISTANCE
from umbel.clustering.linkage import LINKAGES
from umbel.clustering.proximity import DISTANCES
from umbel.data.clients import EPOCHS
from umbel.federation.door import Cohort, Federation
from umbel.fields import choice, number
from umbel.tree import Params, Tree


@dataclass(frozen=True)
class FedClust(OneShot):
    """Distances between classifier layers.

    The paper gives neither the epochs of the warm-up, nor linkage, cut, or whether the bias counts. Here: 10 epochs,
    as in one round; weight and bias; L2; UPGMA; tests of parts of rows. L2 also sees how much a client has: with
    unequal amounts and a cut by distances, `metric="cosine"`, between the layers' updates, tells groups apart more
    clearly (LOG.md).
    """

    warmup: int = number(10, ge=1, le=EPOCHS)  # local epochs before the layer is sent
    metric: str = choice("l2", *DISTANCES)
    linkage: str = choice("average", *LINKAGES)
    cut: str = choice("tested", "tested", *BY_DISTANCE)
    clusters: int = number(2, ge=1)
    threshold: float = number(1.0, ge=0)
    landmarks: int = number(0, ge=0)  # clients in the dendrogram, by which the others are placed; 0 = everybody
    local: Local = training()

    name: ClassVar[str] = "fedclust"
    meanings: ClassVar[str] = "by weights"

    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """The classifier's weights after a warm-up from theta_0; nothing else is sent."""
        heard = train_to_describe(fed, cohort, self.local, anchor, self.local.work._replace(epochs=self.warmup),
                                  send=fed.net.head_names)
        first = tree.flat(tree.stack([{layer: anchor[layer] for layer in fed.net.head_names}]))
        return heard.ids, {"head": (tree.flat(heard.answers["model"]) - first).cpu()}

    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """M_ij = ||w_i - w_j||; theta_0 taken off both changes nothing but gives `cosine` a meaning."""
        return DISTANCES[self.metric](a["head"], b["head"])
