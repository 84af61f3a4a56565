"""The contract every method signs, and the round that most of them share."""

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.server import Server, ServerSettings, grown
from umbel.clustering.signatures import losses
from umbel.data.clients import BATCH, EPOCHS, Work
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation, Heard
from umbel.federation.tasks import TASKS, Loop
from umbel.federation.training import train
from umbel.fields import check, choice, number, refuse_unknown
from umbel.nets.model import Model
from umbel.nets.optimiser import OPTIMISERS
from umbel.tree import Held, Params, Stack, Tree

AT_ONCE = Server()  # a model becomes the mean of its members
REMEMBER = 256 * 2**20  # bytes: above, clients of a simulation do not keep their last local model


@dataclass(frozen=True)
class Local:
    """A client's training in one round. Defaults are PACFL's, on which most of the field builds: SGD at one rate."""

    lr: float = number(0.01, gt=0)  # in the first round, where a schedule changes it
    momentum: float = number(0.5, ge=0, lt=1)  # of sgd; the adams have betas of their own
    epochs: int = number(10, ge=1, le=EPOCHS)
    batch: int = number(10, ge=0, le=BATCH)  # 0 = all rows at once
    rows: str = choice("train", "train", "fit")  # fit: all but the validation rows, by which the best round is kept
    optimiser: str = choice("sgd", *OPTIMISERS)
    nesterov: bool = False  # of sgd: look ahead along the velocity
    weight_decay: float = number(0.0, ge=0)
    schedule: str = choice("constant", "constant", "step", "cosine")  # how the rate follows the round
    horizon: int = number(0, ge=0)  # rounds over which it does, after which it stays; 0 = those of the run
    decay_every: int = number(10, ge=1)  # rounds between two steps of the schedule "step" ...
    decay_factor: float = number(0.5, gt=0, le=1)  # ... and what each multiplies the rate by
    norms: str = choice("shared", "shared", "private")  # private: BatchNorm layers stay at the client (FedBN)

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """A misspelt setting is refused with the near spelling."""
        refuse_unknown(cls, named, "local training")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check(self, "local training")
        if self.nesterov and self.optimiser != "sgd":
            raise UmbelError("The 'nesterov' of local training goes with optimiser 'sgd' alone."
                             f" Got '{self.optimiser}' instead.")
        if self.nesterov and not self.momentum:
            raise UmbelError("The 'nesterov' of local training looks ahead along the velocity, which needs a 'momentum'"
                             " greater than 0. Got 0.0 instead.")

    @property
    def work(self) -> Work:
        """One round's work."""
        return Work(epochs=self.epochs, batch=self.batch, rows=self.rows)

    def share(self, round: int) -> float:
        """What of the first rate is left in this round, by the schedule."""
        if self.schedule == "constant" or not round:
            return 1.0
        if self.schedule == "cosine" and not self.horizon:
            raise UmbelError("A cosine schedule must know over how many rounds it runs: give Local a 'horizon', or run"
                             " the method by umbel.run or umbel.rounds, which know it.")
        done = min(round, self.horizon) if self.horizon else round
        if self.schedule == "step":
            return float(self.decay_factor ** (done // self.decay_every))
        return (1 + math.cos(math.pi * done / self.horizon)) / 2

    def at(self, round: int) -> dict[str, Any]:
        """What a step of training in this round needs to know, as flat options of a task; defaults are left out.

        Signatures and fine-tuning take the first rate, `at(0)`.
        """
        given: dict[str, Any] = {"lr": self.lr * self.share(round)}
        given |= {"momentum": self.momentum} if self.optimiser == "sgd" else {"optimiser": self.optimiser}
        given |= {"nesterov": True} if self.nesterov else {}
        return given | ({"weight_decay": self.weight_decay} if self.weight_decay else {})

    def for_run(self, total: int) -> Self:
        """The same training in a run of `total` rounds, over which its schedule runs unless it has its own horizon."""
        if self.schedule == "constant":
            return self
        if not self.horizon:
            return replace(self, horizon=total)
        if self.schedule == "cosine" and self.horizon < total:
            raise UmbelError(f"The 'horizon' of local training must be at least the {total} rounds of the run, since a"
                             f" cosine ends at a rate of 0. Got {self.horizon} instead.")
        return self

    @property
    def ends_with_the_run(self) -> bool:
        """Whether the run's length decides the rates."""
        return self.schedule != "constant" and not self.horizon


def training(**defaults: Any) -> Any:
    """The field `local` of a method, given by name alone: `local: Local = training(momentum=0.0)`."""
    return field(default=Local(**defaults), kw_only=True)


@dataclass(frozen=True)
class State:
    """All the server remembers between rounds: tensors only, so it is its own checkpoint."""

    models: Stack  # k models
    labels: Tensor  # (n,) which of them each client holds; -1 = not placed yet
    evidence: Tree = field(default_factory=dict)  # why the clusters are what they are; newcomers and reports read it
    slots: Tree = field(default_factory=dict)  # what the server's rule remembers, a row a cluster; {} at rest

    def grow(self, anchor: Params, clusters: int = 1) -> Self:
        """The same state with more clusters behind the old ones, each starting from the anchor."""
        if not clusters:
            return self
        near = tree.to(tree.stack([anchor]), tree.device_of(self.models))
        return replace(self, models=tree.cat([self.models, *[near] * clusters]), slots=grown(self.slots, clusters))


AnyState = TypeVar("AnyState", bound=State)


class Algorithm(ServerSettings, ABC):
    """A frozen dataclass of hyper-parameters with its paper's defaults, and three verbs."""

    name: ClassVar[str]  # what a person types; by default the class's own name
    local: Local
    state: ClassVar[type[State]] = State  # what a checkpoint is read back as
    pretrain: int = 0  # rounds before clusters are formed; they come on top of the rounds asked for
    own: ClassVar[tuple[str, ...]] = ()  # tasks by which a client makes its model from the one sent; () = as sent
    headline: ClassVar[str] = "cluster_model"  # which of the three scores this method is judged by
    has_cluster_model: ClassVar[bool] = True  # whether the server's models classify by themselves
    tuned_layers: str = "all"  # what fine-tuning changes: all layers, or the head
    optimisers: ClassVar[tuple[str, ...]] = (*OPTIMISERS, "nesterov")  # what clients may train with
    optimisers_because: ClassVar[str] = ""  # why not with others
    servers: ClassVar[tuple[str, ...]] = ("none",)  # rules by which its models may follow means; SERVERS: all
    aggregates: ClassVar[bool] = False  # whether answers may become one by any rule; where servers are admitted they do
    servers_because: ClassVar[str] = "it does not declare that its models follow means by a server's rule"
    meanings: ClassVar[str] = ""  # by what it tells clients apart who give alike rows other labels; "": not
    private_norms: ClassVar[bool] = True  # whether BatchNorm layers may stay at the clients: it averages in clusters

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """Refuse what would land in the wrong place: Local as the first setting, a misspelt setting, one of Local's."""
        if any(isinstance(value, Local) for value in given):
            raise UmbelError(f"Local training is given by name: {cls.__name__}(local=Local(...)).")
        of_training = {each.name for each in fields(Local)} - {each.name for each in fields(cls)}
        for name in of_training.intersection(named):
            raise UmbelError(f"The '{name}' of local training is set by {cls.__name__}(local=Local({name}=...)).")
        refuse_unknown(cls, named, cls.name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check(self, self.name)
        walks = "nesterov" if self.local.nesterov else self.local.optimiser
        if walks not in self.optimisers:
            admitted = " or ".join(name for name in self.optimisers if name != "nesterov")
            plain = "" if "nesterov" in self.optimisers else " without nesterov"
            raise UmbelError(f"The 'optimiser' of {self.name} must be {admitted}{plain}, since"
                             f" {self.optimisers_because}. Got {walks} instead.")
        if self.server not in self.servers:
            raise UmbelError(f"The 'server' of {self.name} must be {' or '.join(self.servers)}, since"
                             f" {self.servers_because}. Got {self.server} instead.")
        if self.aggregate != "mean" and self.servers == ("none",) and not self.aggregates:
            raise UmbelError(f"The 'aggregate' of {self.name} must be mean, since {self.servers_because}."
                             f" Got {self.aggregate} instead.")
        if self.server == "none" and self.server_lr is not None:
            raise UmbelError(f"The 'server_lr' of {self.name} is the rate of a server's rule: set 'server' as well, or"
                             f" leave it out. Got server none and server_lr {self.server_lr:g}.")
        if not self.private_norms and self.local.norms == "private":
            raise UmbelError(f"The 'norms' of {self.name}, which needs whole models at the server or has layers of"
                             " its own at the clients, must be 'shared'. Got 'private' instead.")

    def for_run(self, total: int) -> Self:
        """The same method in a run of `total` rounds, pre-training included: its schedule knows where it ends."""
        bound = copy.copy(self)  # not `replace`: in a class that is no dataclass, `local` is no field
        object.__setattr__(bound, "local", self.local.for_run(total))
        return bound

    @property
    def needs_truth(self) -> bool:
        """Whether the method, as set, must be told the true groups; then its field `truth` is filled in."""
        return False

    @property
    def tells(self) -> tuple[str, ...]:
        """What it must be told of clients beside models, in the words of a site's policy: signatures, counts, scores.

        A site that lets them not leave is left out before the run begins; of more that a method asks, when it does.
        """
        return ()

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


def admitted(name: str, thing: Any) -> type[Algorithm]:
    """A method that umbel did not bring, or the sentence that it is none."""
    if not (isinstance(thing, type) and issubclass(thing, Algorithm) and is_dataclass(thing)):
        raise UmbelError(f"A method must be a class, a frozen dataclass that is a umbel.Algorithm. Got '{name}', which"
                         " is not.")
    return thing


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
        **{"keep": can_remember(fed), **local.at(cohort.round), **options},
    )


def train_to_describe(fed: Federation, cohort: Cohort, local: Local, model: Params, work: Work | None = None,
                      round: int = 0, **options: Any) -> Heard:
    """Let clients train from one model so that the server learns who they are; they keep nothing of it.

    `round` is the one whose learning rate is taken: all signatures of a run must be made alike.
    """
    task = _kind(fed, local, train)
    untraced: dict[str, Any] = {"keep": False} | ({} if task is train else {"keep_norms": False})
    return fed.map(task, cohort, work=work or local.work, shared={"model": travelling(fed.net, local, model)},
                   **untraced, **local.at(round), **options)


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
                    *, server: Server = AT_ONCE, **options: Any) -> State:
    """FedAvg inside every cluster: w_z <- sum of n_i w_i / sum of n_i over the members heard; others keep theirs.

    `server` is the rule by which a model follows that mean: a method that admits some passes its `server_rule`.
    """
    heard = train_from_clusters(fed, state, cohort, local, task, **options)
    return averaged(fed, state, heard, server)


def averaged(fed: Federation, state: AnyState, heard: Heard, server: Server = AT_ONCE) -> AnyState:
    """The same state with each cluster's model moved to what its members' answers are as one: by default their mean.

    A server's rule, where there is one, moves what is trained; running statistics become the mean.
    """
    labels, size = state.labels[heard.ids], heard.answers["size"]
    sent: Stack = heard.answers["model"]
    mean = server.as_one(sent, labels, size, state.models)
    if server.rule == "none":
        return replace(state, models=mean)
    moved = [name for name in sent if name in fed.net.trained]
    of = torch.bincount(labels[size.cpu() > 0], minlength=tree.count(state.models)) > 0  # which clusters were heard of
    models, slots = server.follow(state.models, mean, of, state.slots, moved)
    return replace(state, models=models, slots=slots)
