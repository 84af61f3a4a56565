"""What one client can be asked to do.

A task is a pure function of *one* client, registered by name so that a remote node can look it up. There are
three kinds, by what an engine may do with them:

- `Loop`: training, as begin / step / finish over a schedule of batches. An engine may vectorise a step over clients.
- `Rows`: one value per row of data (a loss, a hit), then a summary. An engine may batch rows and models freely.
- `Plain`: anything else, on the client's exact rows. The same code on every engine.

Tasks draw no randomness: batches come in as data. A task says which options it takes; `fed.map` refuses others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from umbel.errors import UmbelError, nearest
from umbel.nets.model import Model
from umbel.tree import Params, Tree


class Client(NamedTuple):
    """One client's private side."""

    x: Tensor  # (m, ...) in [0, 1]; a Loop sees its rows batch by batch instead, and finds none here
    y: Tensor  # (m,)
    size: Tensor  # 0-d int64, how many rows it has
    steps: Tensor  # 0-d int64, how many batches it was given
    memory: Tree  # what earlier tasks left here, by name


class Reply(NamedTuple):
    """`send` travels to the server and is billed; `keep` stays with the client, under its names."""

    send: Tree
    keep: Tree = {}  # noqa: RUF012 (never written to)


class Release(NamedTuple):
    """A statistic of a client's rows, on its way out: uplinks act on it before the task's `after` finishes it."""

    statistic: Tree
    sensitivity: float  # how far one row can move it, L2 over all its numbers
    kept: Tree = {}  # noqa: RUF012 (never written to)


class UpTo(NamedTuple):
    """An axis whose length differs between clients, with its bound."""

    most: int


class Of(NamedTuple):
    """A limit that differs between clients: another leaf of the same answer, or what the server knows of the client."""

    name: str  # of a leaf; or ROWS or STEPS
    times: int = 1


ROWS, STEPS = "the rows told", "the steps asked for"  # of the kind that a call asks for; batches of training


class Leaf(NamedTuple):
    """What a tensor in an answer must look like; the one thing a server can check before it believes it."""

    shape: tuple[int | UpTo, ...] = ()
    dtype: torch.dtype = torch.float32
    least: float | None = None  # no number may be below ...
    most: float | Of | None = None  # ... or above
    total: Of | None = None  # nor may the sum along the last axis be above
    agrees: Callable[[Tensor], Tensor] | None = None  # what else holds of honest numbers, stacked (n, ...): flags


Answers: TypeAlias = Callable[..., Tree]  # (net, **options) -> tree of Leaf
Memory: TypeAlias = Callable[[Model, int], Tree]  # (net, run seed) -> what a client remembers before it was ever asked

COUNT = Leaf((), torch.int64, least=0)
SIZE = COUNT._replace(most=Of(ROWS))  # how many rows an answer is about: no more than the client has said it has


def like(params: Params) -> Tree:
    """The leaves of one model."""
    return {name: Leaf(tuple(leaf.shape), leaf.dtype) for name, leaf in params.items()}


def a_model(net: Model, **_: Any) -> Tree:
    """The usual answer of a Loop: a trained model and the rows it was trained on."""
    return {"model": like(net.shapes), "size": SIZE}


def nothing(net: Model, seed: int) -> Tree:
    """A client that has no memory."""
    return {}


@dataclass(frozen=True)
class Loop:
    """Training. Shapes of carry and fixed never depend on data, so one step serves all clients at once.

    The carry is the step's own: it may be written over. What a step reads beside it may not.
    """

    name: str
    begin: Callable[..., tuple[Tree, Tree]]  # (net, client, **inputs, **options) -> carry, fixed
    step: Callable[..., Tree]  # (net, carry, fixed, batch, **options) -> carry
    finish: Callable[..., Reply]  # (net, client, carry, fixed, **options)
    answers: Answers = a_model
    memory: Memory = nothing
    options: tuple[str, ...] = ()  # what `fed.map` may be given for it beside its inputs
    changing: tuple[str, ...] = ("lr",)  # numbers among them that may change by the round: on a GPU, 0-d tensors


@dataclass(frozen=True)
class Rows:
    """One value per row. With `model` among the inputs, values are (rows, ...); with `models`, (k, rows, ...).

    The option `become` names tasks that turn the model a client was sent into the one that it uses
    (`("remembered",)`, `("fine_tune",)`); they train on its training rows, and their result never travels.
    """

    name: str
    each: Callable[..., Tree]  # (net, params, x, y) -> values, one per row
    finish: Callable[..., Reply]  # (net, values, **options)
    answers: Answers = a_model
    memory: Memory = nothing
    options: tuple[str, ...] = ()  # what `fed.map` may be given for it beside its inputs


@dataclass(frozen=True)
class Plain:
    """A function of one client and all its rows. Where it returns a release, `after` makes a reply of it."""

    name: str
    function: Callable[..., Reply | Release]  # (net, client, **inputs, **options)
    answers: Answers = a_model
    memory: Memory = nothing
    options: tuple[str, ...] = ()  # what `fed.map` may be given for it beside its inputs
    after: Callable[..., Reply] | None = None  # (net, statistic, **options), at the client


Task: TypeAlias = Loop | Rows | Plain
TASKS: dict[str, Task] = {}


AnyTask = TypeVar("AnyTask", Loop, Rows, Plain)


def register(task: AnyTask) -> AnyTask:
    """Let a remote node call this task by name. A name belongs to one task."""
    if task.name in TASKS:
        raise ValueError(f"A task named '{task.name}' is registered already.")
    TASKS[task.name] = task
    return task


def refuse_unknown_options(task: Task, options: Mapping[str, Any]) -> None:
    """A misspelt option would vanish without a word: it is refused, with the near spelling."""
    for name in options:
        if name not in task.options:
            hint = nearest(name, task.options) or f"It takes {', '.join(task.options) or 'none'}."
            raise UmbelError(f"The task '{task.name}' has no option '{name}'. {hint}")
