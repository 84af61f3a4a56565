"""CFL: begin as one cluster; split a cluster that has settled while its clients have not.

Sattler et al. Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints. TNNLS 2020. https://arxiv.org/abs/1910.01991
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from umbel import tree
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
from umbel.clustering.proximity import cosine, symmetric
from umbel.federation.door import Cohort, Federation, Heard, NobodyAnswered
from umbel.federation.phases import CLUSTERING, SPLIT
from umbel.fields import number
from umbel.tree import Stack


@dataclass(frozen=True)
class CFLState(State):
    """With the largest norms seen, by which relative thresholds are measured."""

    largest: Tensor = torch.zeros(2, dtype=torch.float64)  # of the mean update, of any client's update


@dataclass(frozen=True)
class CFL(Algorithm):
    """Recursive bipartition by the cosine of updates.

    Client ids survive every split: clusters are one vector of labels. No update is ever applied twice: when a cluster
    is about to split, members that were not in the cohort are asked first, and those that are away become unplaced.
    """

    settled: float = number(0.4, ge=0)  # eps_1: the mean update is shorter than this ...
    restless: float = number(1.6, ge=0)  # eps_2: ... while some client's is longer than this
    relative: bool = False  # eps as shares of the largest norms seen so far (0.1 and 0.6 do well) instead of lengths
    smallest: int = number(3, ge=2)  # members that a cluster needs to be split
    patience: int = number(20, ge=0)  # rounds before the first split
    local: Local = training()

    name: ClassVar[str] = "cfl"
    servers: ClassVar[tuple[str, ...]] = SERVERS
    state: ClassVar[type[State]] = CFLState
    private_norms: ClassVar[bool] = False  # newcomers choose by the loss of whole models

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        start = one_cluster(fed, seed)
        return CFLState(start.models, start.labels)

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
            if cohort.round >= self.patience and self._should_split(norms, largest):
                splitting.append(label)
        after = replace(averaged(fed, state, heard, self.server_rule), largest=largest)
        for label in splitting:
            after = self._split(fed, after, state, cohort, label, heard.ids[own == label], updates[own == label])
        return after

    def _should_split(self, norms: Tensor, largest: Tensor) -> bool:
        unit = largest if self.relative else torch.ones(2, dtype=torch.float64)
        return bool(norms[0] < self.settled * unit[0]) and bool(norms[1] > self.restless * unit[1])

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
        first = min(ids.tolist(), key=lambda i: fed.names[i])  # stays, so that labels do not depend on the order
        leaving = side != side[ids.tolist().index(first)]
        labels = torch.where(members, -1, after.labels)  # members that are away are placed when they return
        labels[ids] = label
        labels[ids[leaving]] = tree.count(after.models)
        return replace(after.grow(tree.take(after.models, label)), labels=labels)

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """The model with the least mean loss on the newcomer's training rows."""
        return choose_by_loss(fed, state, newcomers)


def _updates(fed: Federation, heard: Heard, models: Stack, own: Tensor) -> Tensor:
    """Each client's way from the model that it was sent, (m, d)."""
    sent = tree.take(models, own.to(tree.device_of(models)))
    return tree.flat(heard.answers["model"], fed.net.trained) - tree.flat(sent, fed.net.trained)


def _norms(updates: Tensor, size: Tensor) -> Tensor:
    """Length of the mean update, and of the longest one."""
    weights = (size / size.sum().clamp(min=1)).to(updates.device, updates.dtype)
    return torch.stack([(weights @ updates).norm(), updates.norm(dim=1).max()]).double().cpu()
