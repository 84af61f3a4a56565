"""FLAG: cluster once by data and gradients together; a short validation run finds the number of clusters.

FLAG: Clustered Federated Learning Combining Data and Gradient Information in Heterogeneous Settings. Submitted to ICLR
2025. https://openreview.net/forum?id=8OrXrdPbef
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from umbel.algorithms.base import Local, choice, number
from umbel.algorithms.oneshot import CUTS, OneShot, choose, unragged, updates
from umbel.algorithms.sweep import RULES, validate
from umbel.clustering.cuts import Choice, sweep
from umbel.clustering.linkage import LINKAGES, linkage
from umbel.clustering.proximity import ANGLES, WEIGHTS, Classwise, class_angle, ratio_range, update_angle
from umbel.clustering.signatures import class_counts, class_vectors
from umbel.data.clients import Work
from umbel.federation.door import Cohort, Federation
from umbel.federation.tasks import train
from umbel.tree import Params, Ragged, Tree


@dataclass(frozen=True)
class FLAG(OneShot):
    """A = beta * V + (1 - beta) * G, hierarchical clustering, the cut by validation.

    Departures. Eq. 4 as printed breaks for absent and single-sample classes: `weights="shifted"` takes ln(n + e),
    "literal" is as printed, "uniform" sends no counts. `rule="knee"` is the printed elbow; the default, "both", also
    weighs the dendrogram, since validation on small clients is noisy. Clusters start from one shared model;
    `start="random"` is as printed.
    """

    beta: float = number(0.5, ge=0, le=1)  # data against gradients
    delta: float = number(0.5, ge=0, le=1)  # how far weights reach around 1
    weights: str = choice("shifted", *WEIGHTS)
    angle: str = choice("smallest", *ANGLES)  # Phi
    rank: int = number(5, ge=1)  # most vectors of a class; p is about 1 % of its rows
    gradient_epochs: int = number(20, ge=1)  # t_g
    linkage: str = choice("average", *LINKAGES)
    cut: str = choice("sweep", "sweep", *CUTS)
    rule: str = choice("both", *RULES)
    clusters: int = number(10, ge=1)
    threshold: float = number(0.5, ge=0)  # alpha, in [0, 1]
    step: float = number(0.05, gt=0, le=1)  # of the grid of alpha; the paper's is 0.1, or 0.01 for Dirichlet
    validators: int = number(30, ge=1)  # clients of the validation run
    validation_rounds: int = number(5, ge=1)
    start: str = choice("shared", "shared", "random")
    local: Local = Local()

    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """U_c of each class with its counts, and Delta after t_g epochs from theta_0: what beta asks for."""
        parts: list[tuple[Tensor, Tree]] = []
        if self.beta > 0:
            vectors = fed.map(class_vectors, cohort, rank=self.rank, share=0.01)
            basis, label = vectors.answers["basis"], vectors.answers["basis_class"].values
            parts.append((vectors.ids, unragged("basis", basis) | {"basis_class": label}))
            if self.weights != "uniform" and self.delta:
                counted = fed.map(class_counts, cohort._replace(ids=vectors.ids))
                parts.append((counted.ids, {"counts": counted.answers["counts"]}))
        if self.beta < 1:
            trained = fed.map(train, cohort, work=Work(epochs=self.gradient_epochs, batch=self.local.batch),
                              shared={"model": anchor}, keep=False, **self.local.options)
            parts.append((trained.ids, {"update": updates(trained, anchor)}))
        who = [i for i in cohort.ids.tolist() if all(i in ids.tolist() for ids, _ in parts)]  # answered everything
        signature: Tree = {"classes": torch.full((len(who),), fed.net.classes)}
        for ids, part in parts:
            at = torch.tensor([ids.tolist().index(i) for i in who], dtype=torch.long)
            signature |= {name: leaf[at] for name, leaf in part.items()}
        return torch.tensor(who, dtype=torch.long), signature

    def scale(self, signature: Tree) -> Tree:
        """w_min and w_max of Eq. 5, and the largest entries of V and G, by which both become [0, 1]."""
        found: Tree = {}
        if self.beta > 0:
            low, high = ratio_range(_classwise(signature), self.weights)
            found |= {"w_min": torch.tensor(low).double(), "w_max": torch.tensor(high).double()}
            found["v_max"] = self._data(signature, signature, found).fill_diagonal_(0).max()
        if self.beta < 1:
            found["g_max"] = update_angle(signature["update"], signature["update"]).fill_diagonal_(0).max()
        return found

    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """A_ij = beta V_ij / max V + (1 - beta) G_ij / max G."""
        mixed = torch.zeros(len(a["classes"]), len(b["classes"]), dtype=torch.float64)
        if self.beta > 0:
            mixed += self._data(a, b, evidence).mul_(self.beta).div_(evidence["v_max"].clamp(min=1e-12))
        if self.beta < 1:
            turned = update_angle(a["update"], b["update"])
            mixed += turned.mul_(1 - self.beta).div_(evidence["g_max"].clamp(min=1e-12))
        return mixed

    def _data(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """V_ij (Eq. 6)."""
        bounds = float(evidence["w_min"]), float(evidence["w_max"])
        return class_angle(_classwise(a), _classwise(b), self.angle, self.weights, self.delta, bounds)

    def group(self, fed: Federation, distance: Tensor, evidence: Tree) -> tuple[Choice, Tree]:
        """Sweep alpha, score each distinct clustering by a short federation, choose."""
        links = linkage(distance, self.linkage)
        if self.cut != "sweep":
            return choose(self.cut, links, distance, self.clusters, self.threshold), {"linkage": links}
        grid = torch.arange(0, 1 + self.step, self.step, dtype=torch.float64)
        score = partial(validate, fed, evidence["who"], self.local, self.validators, self.validation_rounds)
        return sweep(links, grid, score, partial(RULES[self.rule], links)), {"linkage": links}


def _classwise(signature: Tree) -> Classwise:
    return Classwise(Ragged(signature["basis"], signature["basis_length"]), signature["basis_class"],
                     signature.get("counts"), int(signature["classes"][0]))
