"""What one-shot clustered methods share: describe clients once, group them, then FedAvg inside the groups.

A method says how a client describes itself and how far two descriptions are apart; the rest is here. Newcomers are
described the same way, on the model that the others were described on (the anchor), and join the nearest cluster.
"""

from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms import alike
from umbel.algorithms.alike import PARTS_TELL, SIGNATURE_ROUND, PartsSettings
from umbel.algorithms.base import (
    Algorithm,
    Local,
    State,
    clustered_round,
    everyone,
    keeps_norms,
    name_order,
    one_cluster,
    travelling,
)
from umbel.algorithms.server import SERVERS
from umbel.algorithms.sweep import pays
from umbel.clustering.cuts import CUTS
from umbel.clustering.grouping import Grouping, Known, dendrogram, landmarks, settle
from umbel.clustering.labels import canonical
from umbel.clustering.parts import read
from umbel.clustering.paying import Paid, words
from umbel.clustering.proximity import Classwise, symmetric
from umbel.clustering.signatures import (
    class_counts,
    class_embedded,
    class_vectors,
    principal_embedded,
    principal_vectors,
    signature_for,
)
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation, Heard, NobodyAnswered
from umbel.federation.phases import CLUSTERING, SIGNATURE
from umbel.fields import choice
from umbel.seeds import key
from umbel.tree import Params, Ragged, Tree

TRIALS = ("none", "veto", "must")


@dataclass(frozen=True, kw_only=True)
class TrialSettings(PartsSettings):
    """What every one-shot method can be told of a trial: do clusters that tests found pay? (sweep.pays)."""

    trial: str = choice("none", *TRIALS)  # veto: no clusters where one model is better; must: only where they are


class OneShot(TrialSettings, Algorithm):
    """Cluster once, by signatures: in `init`, or after `pretrain` rounds of FedAvg."""

    local: Local
    linkage: str = "average"
    cut: str = "tested"  # a name in cuts.CUTS
    clusters: int = 2  # for the cut by count
    threshold: float = 0.0  # for the cut by value
    landmarks: int = 0  # clients that are grouped by the dendrogram; the others join these. 0 = everybody
    start: str = "shared"  # whether clusters start from the anchor, or each from a random model of its own
    servers: ClassVar[tuple[str, ...]] = SERVERS

    @abstractmethod
    def describe(self, fed: Federation, cohort: Cohort, anchor: Params) -> tuple[Tensor, Tree]:
        """Ask the cohort for signatures, taken on the anchor; who answered, and a tree with a leading client axis."""

    @abstractmethod
    def apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        """How far signatures are apart, (n_a, n_b)."""

    def measure(self, signature: Tree) -> tuple[Tensor, Tree]:
        """Distances among the first clients, and what `apart` divides by: kept as it is when newcomers come."""
        return self.apart(signature, signature, {}), {}

    def group(self, fed: Federation, who: Tensor, signature: Tree, **look: Any) -> Grouping:
        """Signatures to labels: the dendrogram of all distances, cut. `look`: what else the cut's rule looks at."""
        distance, scale = self.measure(signature)
        made = dendrogram(symmetric(distance), self.linkage, CUTS.find(self.rule_name), clusters=self.clusters,
                          threshold=self.threshold, **look)
        return made._replace(evidence=made.evidence | scale)

    @property
    def rule_name(self) -> str:
        """The cut's name in the registry."""
        return self.cut

    def why(self, state: State) -> str:
        """The reason of the cut."""
        sample, curve = state.evidence.get("landmarks"), state.evidence.get("curve", ())
        among = "" if sample is None else f"in a sample of {int(sample)} clients, "
        if "test" in state.evidence:
            trial = words(Paid(*state.evidence["pays"].tolist())) if "pays" in state.evidence else ""
            return among + alike.why(state, trial)
        return among + CUTS[self.rule_name].why(curve) if len(curve) else ""

    def init(self, fed: Federation, seed: int) -> State:
        """One model; and the clusters, unless rounds of pre-training come first."""
        if self.asks_for_parts and self.trial != "none" and keeps_norms(fed.net, self.local):
            raise UmbelError("A trial of clusters averages whole models, and with norms=private BatchNorm layers do not"
                             f" travel: set trial=none of {self.name}, or norms=shared.")
        state = one_cluster(fed, seed)
        return state if self.pretrain else self.form(fed, state, fed.online.nonzero().flatten())

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg in each cluster; the last round of pre-training ends with the clusters being formed.

        Where that round is lost, the next one takes its place.
        """
        if "who" in state.evidence:
            return clustered_round(fed, state, cohort, self.local, server=self.server_rule)
        state = clustered_round(fed, state, everyone(fed, cohort), self.local, server=self.server_rule)
        last = cohort.round >= self.pretrain - 1
        return self.form(fed, state, fed.online.nonzero().flatten()) if last else state

    def form(self, fed: Federation, state: State, ids: Tensor) -> State:
        """Describe, measure, group. Who does not answer stays unplaced."""
        anchor = tree.take(state.models, 0)
        described = self.describe(fed, Cohort(ids, SIGNATURE_ROUND, SIGNATURE), anchor)
        return self.group_by(fed, state, anchor, *described)

    def group_by(self, fed: Federation, state: State, anchor: Params, who: Tensor, signature: Tree) -> State:
        """Group who has been described on the anchor: all by their distances, or landmarks so and the rest by these."""
        rows: Tree = {"who": who, "signature": signature}
        labels = torch.full((len(fed.names),), -1)
        if self.asks_for_parts:
            who, parts, sized = alike.described(fed, who, self.local, anchor, self.signature)
            rows = tree.take(rows, torch.isin(rows["who"], who)) | {"parts": parts}
        with fed.timing(CLUSTERING):
            drawn = self._drawn(fed, who)
            if self.asks_for_parts:
                made = self._by_tests(fed, rows, sized, *drawn)
            else:
                made = landmarks(rows, *drawn, lambda some: self.group(fed, some["who"], some["signature"]),
                                 self._apart, self.stands)
            labels[who] = canonical(made.labels, name_order(fed, who))
        labels, tried = self._tried(fed, who, labels)
        made = made._replace(evidence=made.evidence | tried)
        state = self.first_models(fed, state, int(labels.max()) + 1)
        return replace(state, labels=labels, evidence=made.evidence | {"anchor": tree.to(anchor, "cpu")})

    def _tried(self, fed: Federation, who: Tensor, labels: Tensor) -> tuple[Tensor, Tree]:
        """The same labels, or one cluster where a trial of both says so; and what it said, `pays`."""
        if not self.asks_for_parts or self.trial == "none" or int(labels.max()) < 1:
            return labels, {}
        with suppress(NobodyAnswered):
            found = pays(fed, who, labels[who], self.local, getattr(self, "validators", 30))
            drop = found.worse if self.trial == "veto" else not found.better
            return torch.where(labels > 0, 0, labels) if drop else labels, {"pays": torch.tensor(found).double()}
        return labels, {}

    @property
    def tells(self) -> tuple[str, ...]:
        """Parts of rows, where its cut rests on them."""
        return PARTS_TELL if self.asks_for_parts else ()

    @property
    def asks_for_parts(self) -> bool:
        """Whether the cut rests on tests of parts of clients' rows."""
        return self.rule_name in CUTS and CUTS[self.rule_name].needs_parts

    def _by_tests(self, fed: Federation, rows: Tree, sized: Tensor, chosen: Tensor, others: Tensor) -> Grouping:
        """Landmarks, or everybody, by the tree and tests; the others join as newcomers do."""
        some, later = tree.take(rows, chosen), tree.take(rows, others)
        made = self.group(fed, some["who"], some["signature"], parts=read(some["parts"]), seed=fed.seed)
        if made.test is None:  # a method that groups in a way of its own
            return landmarks(tree.without(rows, ["parts"]), chosen, others, lambda _: made, self._apart, self.stands)
        labels = torch.empty(len(rows["who"]), dtype=torch.long)
        labels[chosen] = made.labels
        labels[others] = alike.joining(some["parts"], made.labels, later["parts"], int(made.labels.max()) + 1,
                                       [fed.names[i] for i in later["who"].tolist()], fed.seed, made.test.by_shares)
        evidence = made.evidence | alike.found(made.test, some["parts"], fed.seed)
        evidence |= {"who": some["who"], "signature": some["signature"], "parts": rows["parts"],
                     "parts_of": rows["who"], "part_sizes": sized}
        return made._replace(labels=labels,
                             evidence=evidence | ({"landmarks": torch.tensor(len(chosen))} if len(others) else {}))

    def _drawn(self, fed: Federation, who: Tensor) -> tuple[Tensor, Tensor]:
        """Places in `who` of the landmarks, and of the others in the order in which they join; nobody joins by 0."""
        if not 0 < self.landmarks < len(who):
            return torch.arange(len(who)), torch.arange(0)
        by_key = sorted(range(len(who)), key=lambda p: key(fed.seed, "landmarks", fed.names[int(who[p])]))
        return torch.tensor(sorted(by_key[: self.landmarks])), torch.tensor(by_key[self.landmarks :])

    def first_models(self, fed: Federation, state: State, clusters: int) -> State:
        """As many models as clusters: copies of the first one, or random ones of their own. The server is at rest."""
        state = replace(state, slots={})
        if self.start == "shared":
            return replace(state, models=tree.take(state.models, slice(0, 1))).grow(
                tree.take(state.models, 0), clusters - 1)
        models = tree.stack([fed.net.init(fed.seed + k) for k in range(clusters)])
        return replace(state, models=tree.to(models, fed.device))

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """Join the cluster whose members are nearest on average; farther than the cut from all, found a new one.

        Where clusters rest on tests, so do newcomers' places. The signature of a client that was described before
        replaces its old one.
        """
        if "who" not in state.evidence:  # still pre-training: there is one model
            return super().admit(fed, state, newcomers)
        if "parts" in state.evidence:
            return alike.join(fed, state, newcomers, self.local, self.signature)
        evidence, labels = state.evidence, state.labels.clone()
        asked = newcomers._replace(round=SIGNATURE_ROUND, phase=SIGNATURE)
        who, signature = self.describe(fed, asked, tree.to(evidence["anchor"], fed.device))
        known = {name: evidence[name] for name in ("who", "signature")}
        places = torch.full((len(labels),), -1).index_copy(0, known["who"], torch.arange(len(known["who"])))
        settled = settle(
            Known(known, labels[known["who"]], self.stands(evidence)), {"who": who, "signature": signature},
            lambda a, b: self._apart(a, b, evidence), tree.count(state.models),
            float(evidence.get("cut", torch.inf)), places[who], founders_only="landmarks" in evidence)
        labels[who] = settled.labels
        state = state.grow(evidence["anchor"], settled.founded)
        return replace(state, labels=labels, evidence=evidence | settled.known.rows)

    def _apart(self, a: Tree, b: Tree, evidence: Tree) -> Tensor:
        return self.apart(a["signature"], b["signature"], evidence)

    def stands(self, evidence: Tree) -> Tensor:
        """Which described clients stand for their cluster, (n,): landmarks do; else nobody, and all members count."""
        return torch.full((len(evidence["who"]),), "landmarks" in evidence)


def subspaces(fed: Federation, cohort: Cohort, local: Local, anchor: Params, signature: str, by_class: bool,
              **options: Any) -> Heard:
    """Ask for the subspaces of the cohort's rows, of all or class by class; the anchor travels where it embeds them."""
    kind = signature_for(fed.net, signature)
    if kind != "embedding":
        return fed.map(class_vectors if by_class else principal_vectors, cohort, signature=kind, **options)
    own = ("with_norms",) if keeps_norms(fed.net, local) else ()
    return fed.map(class_embedded if by_class else principal_embedded, cohort,
                   shared={"model": travelling(fed.net, local, anchor)}, become=own, **options)


def classwise(fed: Federation, cohort: Cohort, local: Local, anchor: Params, signature: str, counted: bool = True,
              **options: Any) -> tuple[Tensor, Tree]:
    """The cohort's subspaces class by class, with the rows of each class where these are `counted`; who answered."""
    heard = subspaces(fed, cohort, local, anchor, signature, True, **options)
    answer = unragged("basis", heard.answers["basis"]) | {"basis_class": heard.answers["basis_class"].values}
    ids = heard.ids
    if counted:
        counts = fed.map(class_counts, cohort._replace(ids=ids))
        answer = tree.take(answer, torch.isin(ids, counts.ids)) | {"counts": counts.answers["counts"]}
        ids = counts.ids
    return ids, answer | {"classes": torch.full((len(ids),), fed.net.classes)}


def as_classwise(signature: Tree) -> Classwise:
    """The same, as distances between clients take it."""
    return Classwise(Ragged(signature["basis"], signature["basis_length"]), signature["basis_class"],
                     signature.get("counts"), int(signature["classes"][0]))


def updates(fed: Federation, heard: Heard, anchor: Params) -> Tensor:
    """Flat updates of what was trained and sent, from where it started, (m, d), on the CPU."""
    ends, trained = heard.answers["model"], fed.net.trained
    return (tree.flat(ends, trained) - tree.flat(tree.stack([tree.part(anchor, ends)]), trained)).cpu()


def unragged(name: str, ragged: Ragged) -> Tree:
    """A ragged answer as plain tensors for the evidence."""
    return {name: ragged.values.cpu(), f"{name}_length": ragged.length}
