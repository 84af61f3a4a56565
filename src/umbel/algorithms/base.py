"""The contract every method signs, and the round that most of them share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from umbel import tree
from umbel.clustering.signatures import losses
from umbel.data.clients import Work
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation, Heard
from umbel.federation.tasks import TASKS, Loop
from umbel.federation.training import train
from umbel.fields import check, choice, number, refuse_unknown
from umbel.nets.model import Model
from umbel.tree import Held, Params, Stack, Tree

REMEMBER = 256 * 2**20  # bytes: above, clients of a simulation do not keep their last local model


@dataclass(frozen=True)
class Local:
    """A client's training in one round: plain SGD. Defaults are PACFL's, on which most of the field builds."""

    lr: float = number(0.01, gt=0)
    momentum: float = number(0.5, ge=0, lt=1)
    epochs: int = number(10, ge=1)
    batch: int = number(10, ge=0)  # 0 = all rows at once
    rows: str = choice("train", "train", "fit")  # fit: all but the validation rows, by which the best round is kept
    norms: str = choice("shared", "shared", "private")  # private: BatchNorm layers stay at the client (FedBN)

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """A misspelt setting is refused with the near spelling."""
        refuse_unknown(cls, named, "local training")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check(self, "local training")

    @property
    def work(self) -> Work:
        """One round's work."""
        return Work(epochs=self.epochs, batch=self.batch, rows=self.rows)

    @property
    def options(self) -> dict[str, Any]:
        """What a step of training needs to know."""
        return {"lr": self.lr, "momentum": self.momentum}


def training(**defaults: Any) -> Any:
    """The field `local` of a method, given by name alone: `local: Local = training(momentum=0.0)`."""
    return field(default=Local(**defaults), kw_only=True)


@dataclass(frozen=True)
class State:
    """All the server remembers between rounds: tensors only, so it is its own checkpoint."""

    models: Stack  # k models
    labels: Tensor  # (n,) which of them each client holds; -1 = not placed yet
    evidence: Tree = field(default_factory=dict)  # why the clusters are what they are; newcomers and reports read it

    def grow(self, anchor: Params, clusters: int = 1) -> Self:
        """The same state with more clusters behind the old ones, each starting from the anchor."""
        if not clusters:
            return self
        near = tree.to(tree.stack([anchor]), tree.device_of(self.models))
        return replace(self, models=tree.cat([self.models, *[near] * clusters]))


class Algorithm(ABC):
    """A frozen dataclass of hyper-parameters with its paper's defaults, and three verbs."""

    name: ClassVar[str]  # what a person types; by default the class's own name
    local: Local
    state: ClassVar[type[State]] = State  # what a checkpoint is read back as
    pretrain: int = 0  # rounds before clusters are formed; they come on top of the rounds asked for
    own: ClassVar[tuple[str, ...]] = ()  # tasks by which a client makes its model from the one sent; () = as sent
    headline: ClassVar[str] = "cluster_model"  # the accuracy that this method is judged by
    has_cluster_model: ClassVar[bool] = True  # whether the server's models classify by themselves
    tuned_layers: str = "all"  # what fine-tuning changes: all layers, or the head
    private_norms: ClassVar[bool] = True  # whether BatchNorm layers may stay at the clients: it averages in clusters

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """Refuse what would land in the wrong place: Local as the first setting, a misspelt setting, one of Local's."""
        if any(isinstance(value, Local) for value in given):
            raise UmbelError(f"Local training is given by name: {cls.__name__}(local=Local(...)).")
        if is_dataclass(cls):
            of_training = {each.name for each in fields(Local)} - {each.name for each in fields(cls)}
            for name in of_training.intersection(named):
                raise UmbelError(f"The '{name}' of local training is set by {cls.__name__}(local=Local({name}=...)).")
            refuse_unknown(cls, named, cls.name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if is_dataclass(self):
            check(self, self.name)
            if not self.private_norms and self.local.norms == "private":
                raise UmbelError(f"The 'norms' of {self.name}, which needs whole models at the server or has layers of"
                                 " its own at the clients, must be 'shared'. Got 'private' instead.")

    @property
    def needs_truth(self) -> bool:
        """Whether the method, as set, must be told the true groups; then its field `truth` is filled in."""
        return False

    def why(self, state: State) -> str:
        """Why the clusters are what they are, in a sentence without its full stop; nothing where nobody chose."""
        return ""

    def uses(self, net: Model) -> tuple[str, ...]:
        """`own`, and before it the client's own BatchNorm layers, where these stay with it."""
        return (*(["with_norms"] if keeps_norms(net, self.local) else []), *self.own)

    def personal(self, sent: Params, kept: Tree) -> Params:
        """The model that a client uses, of the one it was sent and what it kept: the tasks `own`, as plain values."""
        return sent

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


def keeps_norms(net: Model, local: Local) -> bool:
    """Whether there are BatchNorm layers that stay at the clients."""
    return local.norms == "private" and bool(net.norms)


def travelling(net: Model, local: Local, models: Tree) -> Tree:
    """Of models what is sent: all, but for BatchNorm layers that stay at the clients."""
    return tree.without(models, net.norms) if keeps_norms(net, local) else models


def train_from_clusters(fed: Federation, state: State, cohort: Cohort, local: Local, task: Loop | None = None,
                        **options: Any) -> Heard:
    """Send each client its cluster's model and let it train."""
    models = travelling(fed.net, local, state.models)
    return fed.map(
        _kind(fed, local, task or train), cohort, work=local.work,
        each={"model": Held(models, state.labels[cohort.ids])},
        **{"keep": can_remember(fed), **local.options, **options},
    )


def train_to_describe(fed: Federation, cohort: Cohort, local: Local, model: Params, work: Work | None = None,
                      **options: Any) -> Heard:
    """Let clients train from one model so that the server learns who they are; they keep nothing of it."""
    task = _kind(fed, local, train)
    untraced: dict[str, Any] = {"keep": False} | ({} if task is train else {"keep_norms": False})
    return fed.map(task, cohort, work=work or local.work, shared={"model": travelling(fed.net, local, model)},
                   **untraced, **local.options, **options)


def _kind(fed: Federation, local: Local, task: Loop) -> Loop:
    """The task, or what it is for clients that keep their BatchNorm layers."""
    if not keeps_norms(fed.net, local):
        return task
    name = f"private_{task.name}"
    if name not in TASKS:
        raise UmbelError(f"The task '{task.name}' sends whole models: take Local(norms=\"shared\"), or register what it"
                         " is for clients that keep their norms, as in register(private(task)).")
    kind = TASKS[name]
    assert isinstance(kind, Loop)
    return kind


def clustered_round(fed: Federation, state: State, cohort: Cohort, local: Local, task: Loop | None = None,
                    **options: Any) -> State:
    """FedAvg inside every cluster: w_z <- sum of n_i w_i / sum of n_i over the members heard; others keep theirs."""
    return averaged(state, train_from_clusters(fed, state, cohort, local, task, **options))


def averaged(state: State, heard: Heard) -> State:
    """The same state with each cluster's model replaced by the size-weighted mean of its members' answers."""
    return replace(state, models=means(heard.answers["model"], state.labels[heard.ids], heard.answers["size"],
                                       state.models))


def means(models: Stack, labels: Tensor, size: Tensor, otherwise: Stack) -> Stack:
    """`tree.mean_by` of what the clients sent; layers that stayed with them are as before."""
    if len(models) == len(otherwise):
        return tree.mean_by(models, labels, size, otherwise)
    return {**otherwise, **tree.mean_by(models, labels, size, tree.part(otherwise, models))}
