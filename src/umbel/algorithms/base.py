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
from umbel.federation.tasks import Loop
from umbel.federation.training import train
from umbel.fields import check, choice, number, refuse_unknown
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
    headline: ClassVar[str] = "cluster_model"  # which of the three scores this method is judged by
    has_cluster_model: ClassVar[bool] = True  # whether the server's models classify by themselves
    tuned_layers: str = "all"  # what fine-tuning changes: all layers, or the head

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

    @property
    def needs_truth(self) -> bool:
        """Whether the method, as set, must be told the true groups; then its field `truth` is filled in."""
        return False

    def why(self, state: State) -> str:
        """Why the clusters are what they are, in a sentence without its full stop; nothing where nobody chose."""
        return ""

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


def train_from_clusters(fed: Federation, state: State, cohort: Cohort, local: Local, task: Loop | None = None,
                        **options: Any) -> Heard:
    """Send each client its cluster's model and let it train."""
    return fed.map(
        task or train, cohort, work=local.work, each={"model": Held(state.models, state.labels[cohort.ids])},
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
