"""FLAG: cluster once by data and gradients together; tests find the clusters, a short trial says whether they pay.

FLAG: Clustered Federated Learning Combining Data and Gradient Information in Heterogeneous Settings. Submitted to ICLR
2025. https://openreview.net/forum?id=8OrXrdPbef
"""

from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from umbel.algorithms.base import Local, State, keeps_norms, train_to_describe, training
from umbel.algorithms.oneshot import TRIALS, OneShot, as_classwise, classwise, updates
from umbel.algorithms.sweep import validate
from umbel.clustering.cuts import BY_DISTANCE, BY_TRIAL
from umbel.clustering.grouping import Grouping
from umbel.clustering.linkage import LINKAGES
from umbel.clustering.proximity import ANGLES, WEIGHTS, class_angle, ratio_range, update_angle
from umbel.clustering.signatures import MOST_RANK, SIGNATURES
from umbel.data.clients import EPOCHS
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation
from umbel.fields import choice, number
from umbel.tree import Params, Tree


@dataclass(frozen=True)
class FLAG(OneShot):
    """A = beta * V + (1 - beta) * G, hierarchical clustering, the cut by tests.

    Departures. Eq. 4 as printed breaks for absent and single-sample classes: `weights="shifted"` takes ln(n + e),
    "literal" is as printed, "uniform" sends no counts. The paper finds the number of clusters by validation:
    `cut="sweep"`, with `rule="knee"`, the printed elbow, or "both", which also weighs the dendrogram, since validation
    on small clients is noisy. By default clusters rest on tests of parts of rows, and are dropped where a trial with
    the validators says that one model is better.
    Clusters start from one shared model; `start="random"` is as printed.
    """

    beta: float = number(0.5, ge=0, le=1)  # data against gradients
    delta: float = number(0.5, ge=0, le=1)  # how far weights reach around 1
    weights: str = choice("shifted", *WEIGHTS)
    angle: str = choice("smallest", *ANGLES)  # Phi
    rank: int = number(5, ge=1, le=MOST_RANK)  # most vectors of a class; p is about 1 % of its rows
    signature: str = choice("auto", "auto", *SIGNATURES)  # what a row is as a vector; auto: by the kind of data
    gradient_epochs: int = number(20, ge=1, le=EPOCHS)  # t_g
    linkage: str = choice("average", *LINKAGES)
    cut: str = choice("tested", "tested", "sweep", *BY_DISTANCE)
    rule: str = choice("both", *BY_TRIAL)  # of the sweep
    clusters: int = number(10, ge=1)
    threshold: float = number(0.5, ge=0)  # alpha, in [0, 1]
    step: float = number(0.05, ge=0.001, le=1)  # of the grid of alpha; the paper's is 0.1, or 0.01 for Dirichlet
    validators: int = number(30, ge=1)  # clients of the validation run
    validation_rounds: int = number(5, ge=1)
    start: str = choice("shared", "shared", "random")
    landmarks: int = number(0, ge=0)  # clients in the dendrogram, by which the others are placed; 0 = everybody
    trial: str = choice("veto", *TRIALS)  # whether clusters must pay
    local: Local = training()

    name: ClassVar[str] = "flag"
    meanings: ClassVar[str] = "by class and update"

    def init(self, fed: Federation, seed: int) -> State:
        """As all one-shot methods; norms that must not leave a client cannot be part of the trial."""
        if self.cut == "sweep" and keeps_norms(fed.net, self.local):
            raise UmbelError("FLAG's trial of cuts averages whole models, and with norms=private BatchNorm layers do"
                             " not travel: take another cut, as in cut=gap.")
        return super().init(fed, seed)

    @property
    def tells(self) -> tuple[str, ...]:
        """Its vectors, where they count."""
        return super().tells or (("signatures",) if self.beta > 0 else ())

    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """U_c of each class with its counts, and Delta after t_g epochs from theta_0: what beta asks for."""
        parts: list[tuple[Tensor, Tree]] = []
        if self.beta > 0:
            weighed = self.weights != "uniform" and self.delta > 0
            parts.append(classwise(fed, cohort, self.local, anchor, self.signature, weighed, rank=self.rank,
                                   share=0.01))
        if self.beta < 1:
            trained = train_to_describe(fed, cohort, self.local, anchor,
                                        self.local.work._replace(epochs=self.gradient_epochs))
            parts.append((trained.ids, {"update": updates(fed, trained, anchor)}))
        answered = torch.stack([torch.isin(cohort.ids, ids) for ids, _ in parts])
        who = cohort.ids[answered.all(0)]
        signature: Tree = {}
        for ids, part in parts:
            places = {client: place for place, client in enumerate(ids.tolist())}
            at = torch.tensor([places[client] for client in who.tolist()], dtype=torch.long)
            signature |= {name: leaf[at] for name, leaf in part.items()}
        return who, signature

    def measure(self, signature: Tree) -> tuple[Tensor, Tree]:
        """A of the first clients; w_min and w_max of Eq. 5, and the largest of V and of G, which newcomers keep."""
        scale: Tree = {}
        if self.beta > 0:
            low, high = ratio_range(as_classwise(signature), self.weights)
            scale |= {"w_min": torch.tensor(low).double(), "w_max": torch.tensor(high).double()}
        parts = self._parts(signature, signature, scale)
        scale |= {name: part.fill_diagonal_(0).max() for name, part in parts.items()}
        return self._mixed(parts, scale), scale

    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """A_ij between other clients, scaled as among the first."""
        return self._mixed(self._parts(a, b, evidence), evidence)

    def _parts(self, a: Tree, b: Tree, scale: Tree) -> dict[str, Tensor]:
        """V_ij (Eq. 6) and G_ij (Eq. 2) as far as beta asks for them, by the name of what scales them."""
        parts = {}
        if self.beta > 0:
            bounds = float(scale["w_min"]), float(scale["w_max"])
            parts["v_max"] = class_angle(as_classwise(a), as_classwise(b), self.angle, self.weights, self.delta, bounds)
        if self.beta < 1:
            parts["g_max"] = update_angle(a["update"], b["update"])
        return parts

    def _mixed(self, parts: dict[str, Tensor], scale: Tree) -> Tensor:
        """A_ij = beta V_ij / max V + (1 - beta) G_ij / max G, written over V and G."""
        weight = {"v_max": self.beta, "g_max": 1 - self.beta}
        shares = (part.mul_(weight[name]).div_(scale[name].clamp(min=1e-12)) for name, part in parts.items())
        return reduce(Tensor.add_, shares)

    @property
    def rule_name(self) -> str:
        """A sweep goes by its rule."""
        return self.rule if self.cut == "sweep" else self.cut

    def group(self, fed: Federation, who: Tensor, signature: Tree, **look: Any) -> Grouping:
        """By tests; or sweep alpha, score each distinct clustering by a short federation, choose."""
        if self.cut != "sweep":
            return super().group(fed, who, signature, **look)
        grid = torch.arange(0, 1 + self.step, self.step, dtype=torch.float64)
        trial = partial(validate, fed, who, self.local, self.validators, self.validation_rounds)
        return super().group(fed, who, signature, grid=grid, trial=trial, **look)
