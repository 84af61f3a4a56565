"""The one exit: what happens to an answer between a client's task and the wire, and at the server before it is used.

A run declares a chain of uplinks. At the client each acts in turn (`leave`) on what a task sends, at the server each is
undone in reverse (`arrive`), and `promise` says what it makes of the leaves that a task promised, so that the door can
check and bill what really travels. All of it works on stacked trees, one row a client: engines that train many clients
at once need no loop, and one client is a stack of one.

As text, which is how workers and nodes are told: `topk:0.1+quantise:8`.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from umbel import tree
from umbel.errors import UmbelError
from umbel.federation.tasks import Leaf, Plain, Release, Reply
from umbel.fields import check, number
from umbel.nets.model import Model
from umbel.registry import Registry
from umbel.tree import Tree

if TYPE_CHECKING:
    from umbel.federation.door import Call


@dataclass(frozen=True)
class Uplink:
    """What is done to everything that leaves a client; this one does nothing. Fields are its settings.

    `received` holds the `model` that clients were sent, stacked like their answers, or nothing.
    """

    name: ClassVar[str] = ""
    reads_model: ClassVar[bool] = False  # whether it must find a model as a task sends it ...
    hides_model: ClassVar[bool] = False  # ... and whether it leaves none to those behind it

    def __post_init__(self) -> None:
        check(self, self.name)

    def release(self, statistic: Tree, sensitivity: float) -> Tree:
        """At the client: a statistic that one row can move by at most `sensitivity` (L2), before it is finished."""
        return statistic

    def leave(self, send: Tree, received: Tree) -> Tree:
        """At the client: what travels instead of `send`."""
        return send

    def arrive(self, sent: Tree, received: Tree, promised: Tree) -> Tree:
        """At the server: undo `leave`; `promised` are the leaves that `leave` was given."""
        return sent

    def promise(self, expected: Tree, received: Tree) -> Tree:
        """The leaves that travel instead of the expected ones; of `received` only names count here."""
        return expected

    def serves(self, needed: "Uplink") -> bool:
        """Whether it does all that `needed` does, where a site asks for that one."""
        return self == needed

    def __str__(self) -> str:
        values = [repr(getattr(self, each.name)) for each in fields(self)]
        settings = ",".join(value.removesuffix(".0").replace("e+", "e") for value in values)  # + joins a chain
        return f"{self.name}:{settings}" if settings else self.name


def updated(send: Tree, received: Tree) -> list[str]:
    """The float32 layers of a model that answers a model, sorted; none where the answer is no such thing.

    The same for an answer and for its promise, so that client and server always agree.
    """
    model, start = send.get("model"), received.get("model")
    if not isinstance(model, dict) or not isinstance(start, dict) or not set(model) <= set(start):
        return []
    return sorted(name for name, leaf in model.items() if not isinstance(leaf, dict) and leaf.dtype == torch.float32)


def _updates(send: Tree, received: Tree, names: list[str]) -> Tree:
    """How far these layers are from where they started."""
    model, start = send["model"], received["model"]
    return {name: model[name] - start[name].to(model[name].device) for name in names}


def _with_model(send: Tree, layers: Mapping[str, Any]) -> Tree:
    return {**send, "model": {**send["model"], **layers}}


def _forward(sent: Tree, received: Tree, updates: Tree) -> Tree:
    """Put received + update in the place of these layers."""
    start = received["model"]
    return _with_model(sent, {name: start[name].to(leaf.device) + leaf for name, leaf in updates.items()})


@dataclass(frozen=True)
class Clip(Uplink):
    """An update, all layers together, is scaled down to at most this L2 norm; it travels as a model, as before."""

    norm: float = number(1.0, gt=0)
    name: ClassVar[str] = "clip"
    reads_model: ClassVar[bool] = True

    def leave(self, send: Tree, received: Tree) -> Tree:
        """A model whose update is short enough leaves as it is, to the last bit."""
        names = updated(send, received)
        if not names:
            return send
        updates = _updates(send, received, names)
        length = torch.linalg.vector_norm(tree.flat(updates), dim=1)  # (n,)
        short, scale = length <= self.norm, self.norm / length
        scaled = _forward(send, received, tree.each(lambda leaf: leaf * _beside(scale, leaf), updates))["model"]
        own = send["model"]
        return _with_model(send, {name: torch.where(_beside(short, own[name]), own[name], scaled[name])
                                  for name in names})

    def serves(self, needed: Uplink) -> bool:
        """A smaller norm is stronger."""
        return isinstance(needed, Clip) and self.norm <= needed.norm


@dataclass(frozen=True)
class TopK(Uplink):
    """Of an update, only the share of entries that are largest in size travels, over all layers together."""

    share: float = number(0.1, gt=0, le=1)
    name: ClassVar[str] = "topk"
    reads_model: ClassVar[bool] = True
    hides_model: ClassVar[bool] = True

    def count(self, d: int) -> int:
        """Entries that travel, of d."""
        return max(1, math.ceil(round(self.share * d, 6)))  # 0.07 * 100 is a little more than 7

    def leave(self, send: Tree, received: Tree) -> Tree:
        """Places, rising, in the layers laid end to end in the order of their names; and the entries there."""
        names = updated(send, received)
        if not names:
            return send
        update = tree.flat(_updates(send, received, names))  # (n, d)
        index = update.abs().topk(self.count(update.shape[1]), sorted=False).indices.sort().values
        rest = {name: leaf for name, leaf in send["model"].items() if name not in names}
        return {**send, "model": {**rest, "largest": {"index": index.int(), "value": update.gather(1, index)}}}

    def arrive(self, sent: Tree, received: Tree, promised: Tree) -> Tree:
        """The model that was sent out, moved at those places alone."""
        names = updated(promised, received)
        if not names:
            return sent
        index, value = sent["model"]["largest"]["index"], sent["model"]["largest"]["value"]
        shapes = [promised["model"][name].shape for name in names]
        sizes = [math.prod(shape) for shape in shapes]
        update = value.new_zeros(len(value), sum(sizes)).scatter(1, index.long(), value).split(sizes, 1)
        layers = {name: part.reshape(-1, *shape) for name, part, shape in zip(names, update, shapes, strict=True)}
        moved = _forward(sent, received, layers)["model"]
        return {**sent, "model": {name: moved[name] for name in promised["model"]}}

    def promise(self, expected: Tree, received: Tree) -> Tree:
        """An index lies inside the model."""
        names = updated(expected, received)
        if not names:
            return expected
        d = sum(math.prod(expected["model"][name].shape) for name in names)
        k = self.count(d)
        rest = {name: leaf for name, leaf in expected["model"].items() if name not in names}
        largest = {"index": Leaf((k,), torch.int32, least=0, most=d - 1), "value": Leaf((k,))}
        return {**expected, "model": {**rest, "largest": largest}}


@dataclass(frozen=True)
class Quantise(Uplink):
    """Every float32 leaf with an axis travels as small whole numbers, with its own lowest value and step.

    Of a model that answers a model it is the update, whose range is far smaller. Rounded to nearest; a constant leaf is
    exact. float64 leaves are statistics, and single numbers cost nothing: both travel as they are.
    """

    bits: int = 8
    name: ClassVar[str] = "quantise"
    hides_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in (8, 16):
            raise UmbelError(f"The 'bits' of quantise must be 8 or 16. Got {self.bits} instead.")

    @property
    def _kind(self) -> tuple[torch.dtype, int]:
        """How numbers travel, and which of them is the lowest value: torch counts in no unsigned 16 bits."""
        return (torch.uint8, 0) if self.bits == 8 else (torch.int16, -(2**15))

    def leave(self, send: Tree, received: Tree) -> Tree:
        """Numbers, lowest value and step in the place of each leaf."""
        if names := updated(send, received):
            send = _with_model(send, _updates(send, received, names))
        return tree.each(self._encoded, send)

    def arrive(self, sent: Tree, received: Tree, promised: Tree) -> Tree:
        """low + number * step."""
        send = tree.each(self._decoded, promised, sent)
        names = updated(promised, received)
        return _forward(send, received, {name: send["model"][name] for name in names}) if names else send

    def promise(self, expected: Tree, received: Tree) -> Tree:
        """Two numbers more for each leaf."""
        dtype, _ = self._kind

        def one(leaf: Leaf) -> Any:
            if not _is_long(leaf.dtype, len(leaf.shape)):
                return leaf
            return {"number": Leaf(leaf.shape, dtype), "low": Leaf(), "step": Leaf(least=0)}

        return tree.each(one, expected)

    def _encoded(self, leaf: Tensor) -> Any:
        if not _is_long(leaf.dtype, leaf.dim() - 1):
            return leaf
        dtype, first = self._kind
        levels, flat = 2**self.bits - 1, leaf.flatten(1)
        low, high = flat.aminmax(dim=1) if flat.shape[1] else (flat.new_zeros(len(flat)),) * 2  # NaN outlasts it
        step = (high - low) / levels
        places = (flat - low[:, None]) / torch.where(step > 0, step, 1)[:, None]
        numbers = places.round().clamp(0, levels) + first
        return {"number": numbers.to(dtype).view(leaf.shape), "low": low, "step": step}

    def _decoded(self, leaf: Leaf, sent: Any) -> Any:
        if not _is_long(leaf.dtype, len(leaf.shape)):
            return sent
        numbers = sent["number"].float() - self._kind[1]
        return _beside(sent["low"], numbers) + numbers * _beside(sent["step"], numbers)


def _is_long(dtype: torch.dtype, axes: int) -> bool:
    return dtype == torch.float32 and axes > 0


def _beside(one_each: Tensor, leaf: Tensor) -> Tensor:
    """(n,) with as many axes as a leaf (n, ...)."""
    return one_each.view(-1, *[1] * (leaf.dim() - 1))


# Chains ---------------------------------------------------------------------------------------------------------------

UPLINKS: Registry[type[Uplink]] = Registry("uplink", {each.name: each for each in (Clip, TopK, Quantise)})


def parse(text: str) -> tuple[Uplink, ...]:
    """A chain from its text, `topk:0.1+quantise:8`; a setting that is left out has its default."""
    chain = tuple(_one(part.strip()) for part in text.split("+")) if text.strip() else ()
    for k, uplink in enumerate(chain):
        before = chain[:k]
        if uplink.name in [each.name for each in before]:
            raise UmbelError(f"Each uplink stands once in a chain. Got '{uplink.name}' twice in '{text}'.")
        if uplink.reads_model and (hides := [each.name for each in before if each.hides_model]):
            raise UmbelError(f"The uplink '{uplink.name}' must stand before '{hides[0]}', behind which there is no"
                             f" model. Got '{text}' instead.")
    return chain


def written(chain: Iterable[Uplink]) -> str:
    """The text of a chain."""
    return "+".join(map(str, chain))


def _one(text: str) -> Uplink:
    name, _, rest = text.partition(":")
    kind = UPLINKS.find(name.strip())
    values = [_value(each.strip()) for each in rest.split(",")] if rest.strip() else []
    names = [each.name for each in fields(kind)]
    if len(values) > len(names):
        raise UmbelError(f"The uplink '{kind.name}' takes {', '.join(names) or 'no setting'}, and no more."
                         f" Got '{text}' instead.")
    return kind(**dict(zip(names, values, strict=False)))


def _value(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text  # the field's check says that it is no number


# At the client --------------------------------------------------------------------------------------------------------


def released(net: Model, task: Plain, done: Reply | Release, options: Mapping[str, Any],
             uplinks: tuple[Uplink, ...] = ()) -> Reply:
    """What a task replies; one that returns a release finishes it when the uplinks have had their say."""
    if isinstance(done, Reply):
        return done
    assert task.after is not None, f"The task '{task.name}' returns a release, and has no `after`."
    statistic = tree.each(lambda leaf: leaf[None], done.statistic)
    for uplink in uplinks:
        statistic = uplink.release(statistic, done.sensitivity)
    reply = task.after(net, tree.take(statistic, 0), **options)
    return Reply(reply.send, {**done.kept, **reply.keep})


def depart(send: Tree, call: "Call", positions: Tensor) -> Tree:
    """What these positions really send, stacked. Every engine's answers leave through here, and nothing else does."""
    if call.uplinks:
        received = call.received(positions)
        for uplink in call.uplinks:
            send = uplink.leave(send, received)
    return send


# At the server --------------------------------------------------------------------------------------------------------


def promises(net: Model, call: "Call") -> list[Tree]:
    """What the task promises, then what each uplink makes of it; the last of them travels."""
    stages = [call.task.answers(net, **call.options)]
    for uplink in call.uplinks:
        stages.append(uplink.promise(stages[-1], call.received(torch.arange(0))))
    return stages


def arrive(sent: Tree, call: "Call", positions: Tensor, stages: list[Tree]) -> Tree:
    """Undo what the uplinks did at the clients, the last first."""
    received = call.received(positions)
    for uplink, promised in zip(reversed(call.uplinks), reversed(stages[:-1]), strict=True):
        sent = uplink.arrive(sent, received, promised)
    return sent
