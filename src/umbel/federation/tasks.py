"""What one client can be asked to do.

A task is a pure function of *one* client, registered by name so that a remote node can look it up. There are
three kinds, by what an engine may do with them:

- `Loop`: training, as begin / step / finish over a schedule of batches. An engine may vectorise a step over clients.
- `Rows`: one value per row of data (a loss, a hit), then a summary. An engine may batch rows and models freely.
- `Plain`: anything else, on the client's exact rows. The same code on every engine.

Tasks draw no randomness: batches come in as data.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from umbel import ops, tree
from umbel.nets.model import Batch, Model
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


class UpTo(NamedTuple):
    """An axis whose length differs between clients, with its bound."""

    most: int


class Leaf(NamedTuple):
    """What a tensor in an answer must look like; the one thing a server can check before it believes it."""

    shape: tuple[int | UpTo, ...] = ()
    dtype: torch.dtype = torch.float32


Answers: TypeAlias = Callable[..., Tree]  # (net, **options) -> tree of Leaf
Memory: TypeAlias = Callable[[Model, int], Tree]  # (net, run seed) -> what a client remembers before it was ever asked

COUNT = Leaf((), torch.int64)
BROKEN = 1e6  # the loss of a model that gives no numbers: it is scored, not left out of the mean


def like(params: Params) -> Tree:
    """The leaves of one model."""
    return {name: Leaf(tuple(leaf.shape), leaf.dtype) for name, leaf in params.items()}


def a_model(net: Model, **_: Any) -> Tree:
    """The usual answer of a Loop: a trained model and the rows it was trained on."""
    return {"model": like(net.shapes), "size": COUNT}


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


@dataclass(frozen=True)
class Plain:
    """A function of one client and all its rows."""

    name: str
    function: Callable[..., Reply]  # (net, client, **inputs, **options)
    answers: Answers = a_model
    memory: Memory = nothing


Task: TypeAlias = Loop | Rows | Plain
TASKS: dict[str, Task] = {}


AnyTask = TypeVar("AnyTask", Loop, Rows, Plain)


def register(task: AnyTask) -> AnyTask:
    """Let a remote node call this task by name. A name belongs to one task."""
    if task.name in TASKS:
        raise ValueError(f"A task named '{task.name}' is registered already.")
    TASKS[task.name] = task
    return task


def begin_sgd(net: Model, client: Client, *, model: Params, momentum: float = 0.0, only: tuple[str, ...] = (),
              **_: Any) -> tuple[Tree, Tree]:
    """Start at the model that was sent, at rest."""
    carry: Tree = {"model": model}
    if momentum:
        carry["velocity"] = tree.zeros_like({name: model[name] for name in only or model})
    return carry, {}


def descend(carry: Tree, gradient: Params, lr: float, momentum: float) -> Tree:
    """v <- momentum * v + g;  w <- w - lr * v."""
    if not momentum:
        return {**carry, "model": tree.plus(carry["model"], gradient, -lr)}
    model, velocity = (carry[name] for name in ("model", "velocity"))
    w, v = ops.sgd([model[name] for name in gradient], [velocity[name] for name in gradient], list(gradient.values()),
                   lr, momentum)
    return {**carry, "model": {**model, **dict(zip(gradient, w, strict=True))},
            "velocity": dict(zip(gradient, v, strict=True))}


def sgd_step(net: Model, carry: Tree, fixed: Tree, batch: Batch, *, lr: float, momentum: float = 0.0,
             only: tuple[str, ...] = (), **_: Any) -> Tree:
    """One step of SGD, on all parameters or on those named in `only`."""
    gradient = net.gradient(carry["model"], batch, only)
    return descend(carry, gradient, lr, momentum) if net.functional else _descend_here(carry, gradient, lr, momentum)


def _descend_here(carry: Tree, gradient: Params, lr: float, momentum: float) -> Tree:
    """`descend`, written over the carry: less memory to go through, which is most of a small model's step on a CPU."""
    for name, slope in gradient.items():
        if momentum:
            slope = torch.add(slope, carry["velocity"][name], alpha=momentum, out=carry["velocity"][name])
        carry["model"][name].add_(slope, alpha=-lr)
    return carry


def send_model(net: Model, client: Client, carry: Tree, fixed: Tree, *, send: tuple[str, ...] = (),
               keep: bool = True, **_: Any) -> Reply:
    """Send the end of training (or the layers named in `send`) and keep it as the last local model."""
    model = carry["model"]
    sent = {name: model[name] for name in send or model}
    return Reply({"model": sent, "size": client.size}, keep={"last": model} if keep else {})


def _sent(net: Model, *, send: tuple[str, ...] = (), **_: Any) -> Tree:
    whole = like(net.shapes)
    return {"model": {name: whole[name] for name in send or whole}, "size": COUNT}


def _only_model(net: Model, client: Client, carry: Tree, fixed: Tree, **_: Any) -> Reply:
    return Reply({"model": carry["model"], "size": client.size})


def _hits(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    logits = net.logits(params, x)
    return {"hit": logits.argmax(1) == y, "loss": cross_entropy(logits, y, reduction="none")}


def _tally(net: Model, values: Tree, **_: Any) -> Reply:
    loss = values["loss"].double().mean().nan_to_num(nan=BROKEN, posinf=BROKEN)
    total = torch.tensor(len(values["hit"]))
    return Reply({"hits": values["hit"].sum().cpu(), "loss": loss.cpu(), "size": total})


def _tallied(net: Model, **_: Any) -> Tree:
    return {"hits": COUNT, "loss": Leaf((), torch.float64), "size": COUNT}


def _recall(net: Model, client: Client, *, model: Params, **_: Any) -> Reply:
    return Reply({"model": client.memory.get("last", model), "size": client.size})


train = register(Loop("train", begin_sgd, sgd_step, send_model, answers=_sent))
"""Local SGD from the model that was sent."""

fine_tune = register(replace(train, name="fine_tune", finish=_only_model, answers=a_model))
"""Local SGD that leaves no trace: what a client would do with the model it was given."""

remembered = register(Plain("remembered", _recall))
"""The model as it was after the client's own last training; the one sent, where it never trained."""

score = register(Rows("score", _hits, _tally, answers=_tallied))
"""Hits and mean loss on a client's rows."""
