"""What one-shot clustered methods share: describe clients once, group them, then FedAvg inside the groups.

A method says how a client describes itself and how far two descriptions are apart; the rest is here. Newcomers are
described the same way, on the model that the others were described on (the anchor), and join the nearest cluster.
"""

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, clustered_round, everyone, name_order, one_cluster
from umbel.clustering.cuts import CUTS, Choice, Dendrogram
from umbel.clustering.labels import canonical
from umbel.clustering.linkage import linkage
from umbel.clustering.proximity import symmetric
from umbel.federation.door import Cohort, Federation, Heard
from umbel.federation.phases import CLUSTERING, SIGNATURE
from umbel.tree import Params, Ragged, Tree

SIGNATURE_ROUND = 0  # whenever it is asked for, a signature is drawn from the same stream


class OneShot(Algorithm):
    """Cluster once, by signatures: in `init`, or after `pretrain` rounds of FedAvg."""

    local: Local
    linkage: str = "average"
    cut: str = "silhouette"  # a name in cuts.CUTS
    clusters: int = 2  # for the cut by count
    threshold: float = 0.0  # for the cut by value
    start: str = "shared"  # whether clusters start from the anchor, or each from a random model of its own

    @abstractmethod
    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """Ask the cohort for signatures, taken on the anchor; who answered, and a tree with a leading client axis."""

    @abstractmethod
    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """How far signatures are apart, (n_a, n_b)."""

    def measure(self, signature: Tree) -> tuple[Tensor, Tree]:
        """Distances among the first clients, and what `apart` divides by: kept as it is when newcomers come."""
        return self.apart(signature, signature, {}), {}

    def group(self, fed: Federation, distance: Tensor, evidence: Tree) -> tuple[Choice, Tree]:
        """Distances to labels, and what to keep of the way there."""
        links = linkage(distance, self.linkage)
        dendrogram = Dendrogram(links, distance, self.clusters, self.threshold)
        return CUTS.find(self.rule_name).choose(dendrogram), {"linkage": links}

    @property
    def rule_name(self) -> str:
        """The cut's name in the registry."""
        return self.cut

    def why(self, state: State) -> str:
        """The reason of the cut."""
        curve = state.evidence.get("curve", ())
        return CUTS[self.rule_name].why(curve) if len(curve) else ""

    def init(self, fed: Federation, seed: int) -> State:
        """One model; and the clusters, unless rounds of pre-training come first."""
        state = one_cluster(fed, seed)
        return state if self.pretrain else self.form(fed, state, fed.online.nonzero().flatten())

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg in each cluster; the last round of pre-training ends with the clusters being formed.

        Where that round is lost, the next one takes its place.
        """
        if "who" in state.evidence:
            return clustered_round(fed, state, cohort, self.local)
        state = clustered_round(fed, state, everyone(fed, cohort), self.local)
        last = cohort.round >= self.pretrain - 1
        return self.form(fed, state, fed.online.nonzero().flatten()) if last else state

    def form(self, fed: Federation, state: State, ids: Tensor) -> State:
        """Describe, measure, group. Who does not answer stays unplaced."""
        anchor = tree.take(state.models, 0)
        described = self.describe(fed, Cohort(ids, SIGNATURE_ROUND, SIGNATURE), anchor)
        return self.group_by(fed, state, anchor, *described)

    def group_by(self, fed: Federation, state: State, anchor: Params, who: Tensor, signature: Tree) -> State:
        """Measure and group who has been described on the anchor."""
        evidence: Tree = {"who": who, "signature": signature, "anchor": tree.to(anchor, "cpu")}
        labels = torch.full((len(fed.names),), -1)
        with fed.timing(CLUSTERING):
            distance, scale = self.measure(signature)
            evidence |= scale | {"proximity": symmetric(distance)}
            choice, extra = self.group(fed, evidence["proximity"], evidence)
            labels[who] = canonical(choice.labels, name_order(fed, who))
        evidence |= extra | {"cut": torch.tensor(choice.cut, dtype=torch.float64), "curve": choice.curve}
        state = self.first_models(fed, state, int(labels.max()) + 1)
        return replace(state, labels=labels, evidence=evidence)

    def first_models(self, fed: Federation, state: State, clusters: int) -> State:
        """As many models as clusters: copies of the first one, or random ones of their own."""
        if self.start == "shared":
            return replace(state, models=tree.take(state.models, slice(0, 1))).grow(
                tree.take(state.models, 0), clusters - 1)
        models = tree.stack([fed.net.init(fed.seed + k) for k in range(clusters)])
        return replace(state, models=tree.to(models, fed.device))

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """Join the cluster whose members are nearest on average; farther than the cut from all, found a new one."""
        if "who" not in state.evidence:  # still pre-training: there is one model
            return super().admit(fed, state, newcomers)
        evidence = state.evidence
        asked = newcomers._replace(round=SIGNATURE_ROUND, phase=SIGNATURE)
        who, signature = self.describe(fed, asked, tree.to(evidence["anchor"], fed.device))
        for position, client in enumerate(who.tolist()):
            own = tree.take(signature, slice(position, position + 1))
            state = self._settle(state, client, own)
        return state

    def _settle(self, state: State, client: int, own: Tree) -> State:
        """Place one client by its signature, which replaces an older one of its own."""
        evidence, labels = state.evidence, state.labels.clone()
        away = self.apart(own, evidence["signature"], evidence)[0]
        others = self.counts(state) & (evidence["who"] != client)
        label, nearest = nearest_cluster(away[others], labels[evidence["who"][others]], tree.count(state.models))
        if label < 0 or nearest > float(evidence["cut"]):
            label = tree.count(state.models)
            state = state.grow(evidence["anchor"])
        labels[client] = label
        return replace(state, labels=labels, evidence=evidence | described_anew(evidence, client, own))

    def counts(self, state: State) -> Tensor:
        """Which described clients a newcomer is compared with: all of them."""
        return torch.ones(len(state.evidence["who"]), dtype=torch.bool)


def nearest_cluster(away: Tensor, labels: Tensor, clusters: int) -> tuple[int, float]:
    """The cluster with the least mean distance to its members, and that distance; -1 where nobody is placed."""
    means = torch.full((clusters,), torch.inf, dtype=torch.float64)
    for label in range(clusters):
        if bool((labels == label).any()):
            means[label] = away[labels == label].mean()
    best = int(means.argmin())
    return (best, float(means[best])) if bool(means.isfinite().any()) else (-1, torch.inf)


def updates(fed: Federation, heard: Heard, anchor: Params) -> Tensor:
    """Flat updates of what was trained and sent, from where it started, (m, d), on the CPU."""
    ends, trained = heard.answers["model"], fed.net.trained
    return (tree.flat(ends, trained) - tree.flat(tree.stack([tree.part(anchor, ends)]), trained)).cpu()


def unragged(name: str, ragged: Ragged) -> Tree:
    """A ragged answer as plain tensors for the evidence."""
    return {name: ragged.values.cpu(), f"{name}_length": ragged.length}


def joined(old: Tree, new: Tree) -> Tree:
    """Signatures of more clients: rows below rows, the shorter padded along the second axis."""
    def one(a: Tensor, b: Tensor) -> Tensor:
        if a.dim() > 1 and a.shape[1] != b.shape[1]:
            longest = max(a.shape[1], b.shape[1])
            a, b = (pad(side, (0, 0) * (side.dim() - 2) + (0, longest - side.shape[1])) for side in (a, b))
        return torch.cat([a, b])

    return tree.each(one, old, new)


def described_anew(evidence: Tree, client: int, own: Tree) -> Tree:
    """Who is described and how, with this client's signature: a new row, or in the place of its old one."""
    who, signature = evidence["who"], joined(evidence["signature"], own)
    order = torch.arange(len(who) + 1)
    if bool((who == client).any()):
        order = torch.where(who == client, len(who), order[:-1])
    return {"who": torch.cat([who, torch.tensor([client])])[order], "signature": tree.take(signature, order)}
