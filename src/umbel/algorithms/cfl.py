"""CFL: begin as one cluster; split a cluster whose clients tests tell apart, by the cosines of their updates.

Sattler et al. Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints. TNNLS 2020. https://arxiv.org/abs/1910.01991
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from typing import ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms import alike
from umbel.algorithms.alike import PartsSettings
from umbel.algorithms.base import (
    Algorithm,
    Local,
    State,
    averaged,
    choose_by_loss,
    one_cluster,
    train_from_clusters,
    training,
)
from umbel.algorithms.server import SERVERS
from umbel.clustering.linkage import bipartition
from umbel.clustering.parts import read
from umbel.clustering.proximity import cosine, symmetric
from umbel.clustering.said import contrast
from umbel.clustering.tested import differ
from umbel.federation.door import Cohort, Federation, Heard, NobodyAnswered
from umbel.federation.phases import CLUSTERING, SPLIT
from umbel.fields import choice, number
from umbel.seeds import generator
from umbel.tree import Stack


@dataclass(frozen=True)
class CFLState(State):
    """With the largest norms seen, by which relative thresholds are measured."""

    largest: Tensor = torch.zeros(2, dtype=torch.float64)  # of the mean update, of any client's update


@dataclass(frozen=True)
class CFL(PartsSettings, Algorithm):
    """Recursive bipartition by the cosine of updates, by complete linkage; both halves go on from the joint mean.

    The paper splits a cluster whose mean update is short while some client's is long: `cut="norms"`. Those lengths
    depend on rate, epochs and data, and no thresholds served all of them. By default tests on parts of rows say whether
    a cluster's members differ, once for the same members; then nothing need settle first, and members whose rows lie
    nearer to those of the other half change sides.

    Client ids survive every split: clusters are one vector of labels. No update is ever applied twice: when a cluster
    is about to split, members that were not in the cohort are asked first, and those that are away become unplaced.
    """

    cut: str = choice("tested", "tested", "norms")  # when a cluster splits
    settled: float = number(0.4, ge=0)  # eps_1, of the cut by norms: the mean update is shorter than this ...
    restless: float = number(1.6, ge=0)  # eps_2: ... while some client's is longer than this
    relative: bool = False  # eps as shares of the largest norms seen so far instead of lengths
    smallest: int = number(2, ge=2)  # members that a cluster needs to be split
    patience: int = number(0, ge=0)  # rounds before the first split
    local: Local = training()

    name: ClassVar[str] = "cfl"
    meanings: ClassVar[str] = "by update"
    servers: ClassVar[tuple[str, ...]] = SERVERS
    state: ClassVar[type[State]] = CFLState
    private_norms: ClassVar[bool] = False  # newcomers choose by the loss of whole models

    @property
    def tells(self) -> tuple[str, ...]:
        """Parts of rows, where they decide."""
        return alike.PARTS_TELL if self.cut == "tested" else ()

    def init(self, fed: Federation, seed: int) -> State:
        """One random model; and what clients say of their rows, by which clusters are split later."""
        start = one_cluster(fed, seed)
        if self.cut == "norms":
            return CFLState(start.models, start.labels)
        anchor = tree.take(start.models, 0)
        who, parts, sized = alike.described(fed, fed.online.nonzero().flatten(), self.local, anchor, self.signature)
        return CFLState(start.models, start.labels, {
            "parts": parts, "parts_of": who, "part_sizes": sized, "anchor": tree.to(anchor, "cpu")})

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg in each cluster; then those clusters split that should."""
        assert isinstance(state, CFLState)
        heard = train_from_clusters(fed, state, cohort, self.local)
        own, size = state.labels[heard.ids], heard.answers["size"]
        updates = _updates(fed, heard, state.models, own)
        largest, splitting = state.largest, []
        for label in sorted(set(own.tolist())):
            inside = own == label
            norms = _norms(updates[inside], size[inside])
            largest = torch.maximum(largest, norms)
            splitting += [label] if self._restless(norms, largest) else []
        after = replace(averaged(fed, state, heard, self.server_rule), largest=largest)
        if cohort.round < self.patience:
            return after
        if self.cut == "tested":
            with fed.timing(CLUSTERING):
                after, splitting = self._told_apart(after, fed.seed)
        for label in splitting:
            here = own == label
            after = self._split(fed, after, state, cohort, label, heard.ids[here], updates[here])
        return after

    def _restless(self, norms: Tensor, largest: Tensor) -> bool:
        unit = largest if self.relative else torch.ones(2, dtype=torch.float64)
        return bool(norms[0] < self.settled * unit[0]) and bool(norms[1] > self.restless * unit[1])

    def _told_apart(self, state: CFLState, seed: int) -> tuple[CFLState, list[int]]:
        """The clusters whose members differ. `whole`: of how many members each was when tests could not tell them."""
        evidence, clusters = state.evidence, tree.count(state.models)
        of = state.labels[evidence["parts_of"]]
        size = torch.bincount(of[of >= 0], minlength=clusters)
        whole = torch.zeros_like(size)
        whole[: len(evidence.get("whole", ()))] = evidence.get("whole", whole)
        due = ((size >= self.smallest) & (size != whole)).nonzero().flatten().tolist()
        if not due:
            return state, []
        if clusters == 1:
            evidence = evidence | alike.of_all(evidence["parts"], seed) | {"who": evidence["parts_of"]}
        parts, tests = read(evidence["parts"]), alike.telling(evidence)
        telling = [label for label in due if differ(parts, (of == label).nonzero().flatten().numpy(), tests,
                                                    generator(seed, "splits", label, clusters))]
        whole[due] = size[due]
        whole[telling] = 0
        return replace(state, evidence=evidence | {"whole": whole}), telling

    def _split(self, fed: Federation, after: CFLState, before: State, cohort: Cohort, label: int, ids: Tensor,
               updates: Tensor) -> CFLState:
        """Part a cluster in two by its members' updates, all taken from the same model."""
        members = before.labels == label
        if int((members & fed.online).sum()) < self.smallest:
            return after
        absent = members & fed.online
        absent[ids] = False
        if bool(absent.any()):
            asked = Cohort(absent.nonzero().flatten(), cohort.round, SPLIT)
            with suppress(NobodyAnswered):  # then those that did answer are parted alone
                heard = train_from_clusters(fed, before, asked, self.local, keep=False)
                late = _updates(fed, heard, before.models, before.labels[heard.ids])
                ids, updates = torch.cat([ids, heard.ids]), torch.cat([updates, late])
        if len(ids) < self.smallest:
            return after
        with fed.timing(CLUSTERING):
            side = bipartition(symmetric(cosine(updates, updates)))
            if self.cut == "tested":
                side = alike.nearer(after.evidence, ids, side)
        first = min(ids.tolist(), key=lambda i: fed.names[i])  # stays, so that labels do not depend on the order
        leaving = side != side[ids.tolist().index(first)]
        labels = torch.where(members, -1, after.labels)  # members that are away are placed when they return
        labels[ids] = label
        labels[ids[leaving]] = tree.count(after.models)
        return replace(after.grow(tree.take(after.models, label)), labels=labels)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """The model with the least mean loss on the newcomer's training rows, of which it says what the others did."""
        state = choose_by_loss(fed, state, newcomers)
        if "parts" in state.evidence:
            with suppress(NobodyAnswered):
                return replace(state, evidence=alike.known_too(fed, state.evidence, newcomers, self.local,
                                                               self.signature)[1])
        return state

    def why(self, state: State) -> str:
        """What tests said, where they were asked."""
        evidence = state.evidence
        if "test" not in evidence:
            return ""
        apart = contrast(read(evidence["parts"]), state.labels[evidence["parts_of"]].numpy())
        more = {"contrast": torch.tensor(apart)} if isfinite(apart) else {}
        return alike.why(replace(state, evidence=evidence | {"test": evidence["test"] | more}))


def _updates(fed: Federation, heard: Heard, models: Stack, own: Tensor) -> Tensor:
    """Each client's way from the model that it was sent, (m, d)."""
    sent = tree.take(models, own.to(tree.device_of(models)))
    return tree.flat(heard.answers["model"], fed.net.trained) - tree.flat(sent, fed.net.trained)


def _norms(updates: Tensor, size: Tensor) -> Tensor:
    """Length of the mean update, and of the longest one."""
    weights = (size / size.sum().clamp(min=1)).to(updates.device, updates.dtype)
    return torch.stack([(weights @ updates).norm(), updates.norm(dim=1).max()]).double().cpu()
