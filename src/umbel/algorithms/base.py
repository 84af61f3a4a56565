"""The contract every method signs, and the round that most of them share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.clustering.signatures import losses
from umbel.data.clients import Work
from umbel.federation import tasks
from umbel.federation.door import Cohort, Federation, Heard
from umbel.federation.tasks import Loop
from umbel.tree import Held, Stack, Tree

REMEMBER = 256 * 2**20  # bytes: above, clients of a simulation do not keep their last local model


def number(default: Any, **rule: float) -> Any:
    """A hyper-parameter with its allowed range: `number(0.01, gt=0)`; rules are ge, gt, le, lt. Checked at the edge."""
    return field(default=default, metadata=rule)


def choice(default: str | None, *allowed: str) -> Any:
    """A hyper-parameter that is one of a few words."""
    return field(default=default, metadata={"one_of": allowed})


@dataclass(frozen=True)
class Local:
    """A client's training in one round: plain SGD. Defaults are PACFL's, on which most of the field builds."""

    lr: float = number(0.01, gt=0)
    momentum: float = number(0.5, ge=0, lt=1)
    epochs: int = number(10, ge=1)
    batch: int = number(10, ge=0)  # 0 = all rows at once

    @property
    def work(self) -> Work:
        """One round's work."""
        return Work(epochs=self.epochs, batch=self.batch)

    @property
    def options(self) -> dict[str, Any]:
        """What a step of training needs to know."""
        return {"lr": self.lr, "momentum": self.momentum}


@dataclass(frozen=True)
class State:
    """All the server remembers between rounds: tensors only, so it is its own checkpoint."""

    models: Stack  # k models
    labels: Tensor  # (n,) which of them each client holds; -1 = not placed yet
    evidence: Tree = field(default_factory=dict)  # why the clusters are what they are; newcomers and reports read it


class Algorithm(ABC):
    """A frozen dataclass of hyper-parameters with its paper's defaults, and three verbs."""

    local: Local
    state: ClassVar[type[State]] = State  # what a checkpoint is read back as
    pretrain: int = 0  # rounds before clusters are formed; they come on top of the rounds asked for
    own: ClassVar[tuple[str, ...]] = ()  # tasks by which a client makes its model from the one sent; () = as sent
    headline: ClassVar[str] = "cluster_model"  # the accuracy that this method is judged by
    has_cluster_model: ClassVar[bool] = True  # whether the server's models classify by themselves
    tuned_layers: str = "all"  # what fine-tuning changes: all layers, or the head

    @property
    def needs_truth(self) -> bool:
        """Whether the method, as set, must be told the true groups; then its field `truth` is filled in."""
        return False

    @abstractmethod
    def init(self, fed: Federation, seed: int) -> State:
        """Before round 0: first models and, for one-shot methods, the clusters."""

    @abstractmethod
    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """One round with the clients of the cohort."""

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """Give newcomers a cluster. For methods with one model there is nothing to ask: they hold label 0."""
        labels = state.labels.clone()
        labels[newcomers.ids] = 0
        return replace(state, labels=labels)


def everyone(fed: Federation, cohort: Cohort) -> Cohort:
    """The same round, for all clients that can be asked."""
    return cohort._replace(ids=fed.online.nonzero().flatten())


def one_cluster(fed: Federation, seed: int) -> State:
    """One fresh model for everybody who is there."""
    models = tree.to(tree.stack([fed.net.init(seed)]), fed.device)
    return State(models, torch.where(fed.online, 0, -1))


def name_order(fed: Federation, ids: Tensor) -> Tensor:
    """Positions in `ids`, sorted by name: clusters are numbered in this order, wherever clients stand."""
    return torch.tensor(sorted(range(len(ids)), key=lambda p: fed.names[int(ids[p])]), dtype=torch.long)


def choose_by_loss(fed: Federation, state: State, cohort: Cohort) -> State:
    """Each of the cohort joins the model with the least mean loss on its training rows; none founds a cluster."""
    heard = fed.map(losses, cohort, shared={"models": state.models}, k=tree.count(state.models))
    labels = state.labels.clone()
    labels[heard.ids] = heard.answers["losses"].argmin(1).cpu()
    return replace(state, labels=labels)


def can_remember(fed: Federation) -> bool:
    """Whether all clients' last local models fit what a simulation may keep."""
    return 4 * fed.net.parameters * len(fed.names) <= REMEMBER


def train_from_clusters(fed: Federation, state: State, cohort: Cohort, local: Local, task: Loop | None = None,
                        **options: Any) -> Heard:
    """Send each client its cluster's model and let it train."""
    return fed.map(
        task or tasks.train, cohort, work=local.work, each={"model": Held(state.models, state.labels[cohort.ids])},
        **{"keep": can_remember(fed), **local.options, **options},
    )


def clustered_round(fed: Federation, state: State, cohort: Cohort, local: Local, task: Loop | None = None,
                    **options: Any) -> State:
    """FedAvg inside every cluster: w_z <- sum of n_i w_i / sum of n_i over the members heard; others keep theirs."""
    return averaged(state, train_from_clusters(fed, state, cohort, local, task, **options))


def averaged(state: State, heard: Heard) -> State:
    """The same state with each cluster's model replaced by the size-weighted mean of its members' answers."""
    models = tree.mean_by(heard.answers["model"], state.labels[heard.ids], heard.answers["size"], state.models)
    return replace(state, models=models)
