"""CFLGT: cluster by gradient trajectories, the forces that a client's data exert on the classifier's classes.

Liu et al. A Remedy for Heterogeneous Data: Clustered Federated Learning with Gradient Trajectory. Big Data Mining and
Analytics 7(4), 2024. https://doi.org/10.26599/BDMA.2024.9020065
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from umbel.algorithms.alike import cut_by_tests
from umbel.algorithms.base import Local, State, keeps_norms, training, travelling
from umbel.algorithms.oneshot import OneShot
from umbel.clustering.branches import by_distance
from umbel.clustering.flat import affinity_propagation
from umbel.clustering.grouping import FAR, Grouping
from umbel.clustering.heterogeneity import hopkins, variation
from umbel.clustering.proximity import symmetric, trajectory_distance
from umbel.clustering.signatures import trajectory
from umbel.federation.door import Cohort, Federation
from umbel.fields import choice, number
from umbel.tree import Params, Tree


@dataclass(frozen=True)
class CFLGT(OneShot):
    """Gradient trajectories and affinity propagation, from whose clusters tests go on.

    The paper gives no settings of affinity propagation: similarity -d, median preference, damping 0.9. On alike clients
    it finds a dozen clusters all the same. By default tests of parts of rows split its clusters further, along the tree
    of trajectories, and join those that cannot be told apart. With `cut="gate"` its clusters are the answer, and the
    paper's own Hopkins statistic is the gate: at most `gate`, and there is one cluster (`gate=0` opens it). Forces are
    divided by the client's rows; `total=True` sums, as printed.
    """

    pretrain: int = number(25, ge=0)  # K
    damping: float = number(0.9, ge=0.5, lt=1)
    cut: str = choice("tested", "tested", "gate")
    gate: float = number(0.75, ge=0, le=1)  # H, of the cut by it: 0.5 is uniform, above 0.75 is clustered
    total: bool = False
    landmarks: int = number(0, ge=0)  # clients that affinity propagation groups; 0 = everybody
    local: Local = training()

    name: ClassVar[str] = "cflgt"
    meanings: ClassVar[str] = "by class"

    def init(self, fed: Federation, seed: int) -> State:
        """As all one-shot methods; targets without classes are refused here, before the pre-training."""
        trajectory.answers(fed.net, total=self.total)
        return super().init(fed, seed)

    @property
    def tells(self) -> tuple[str, ...]:
        """Its trajectories at least."""
        return super().tells or ("signatures",)

    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """Z'_1, Z'_2: pull and push of each class, 2 C numbers a client."""
        own = ("with_norms",) if keeps_norms(fed.net, self.local) else ()
        heard = fed.map(trajectory, cohort, shared={"model": travelling(fed.net, self.local, anchor)},
                        total=self.total, become=own)
        return heard.ids, {"trajectory": heard.answers["trajectory"].cpu()}

    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """Mean over classes of the distance between corresponding points."""
        return trajectory_distance(a["trajectory"], b["trajectory"])

    def group(self, fed: Federation, who: Tensor, signature: Tree, **look: Any) -> Grouping:
        """Affinity propagation; then tests, or the gate: whether the trajectories are clustered at all."""
        points, distance = signature["trajectory"], symmetric(self.measure(signature)[0])
        tendency = hopkins(points.flatten(1), fed.seed)
        groups = affinity_propagation(distance, self.damping)
        evidence: Tree = {"proximity": distance, "hopkins": torch.tensor(tendency), "variation": variation(points),
                          "converged": torch.tensor(float(groups.converged))}
        if self.cut == "tested":
            inside = [(groups.labels == k).nonzero().flatten().numpy() for k in range(len(groups.exemplars))]
            made = cut_by_tests(look["parts"], [by_distance(distance.numpy(), members) for members in inside], fed.seed)
            return Grouping(torch.from_numpy(made.labels), evidence, made)
        if tendency <= self.gate:
            middle = distance.sum(1).argmin()
            groups = groups._replace(labels=torch.zeros_like(groups.labels), exemplars=middle[None])
        farthest = distance[torch.arange(len(distance)), groups.exemplars[groups.labels]].max()
        return Grouping(groups.labels, evidence | {
            "cut": FAR * farthest, "curve": torch.zeros(0, 4, dtype=torch.float64), "exemplars": who[groups.exemplars]})

    def stands(self, evidence: Tree) -> Tensor:
        """Exemplars do; of landmarks, who founded a cluster does, too, and stands behind them in the evidence."""
        who = evidence["who"]
        founders = torch.arange(len(who)) >= int(evidence.get("landmarks", len(who)))
        return torch.isin(who, evidence["exemplars"]) | founders
