"""How a client walks: a step of SGD, Adam or AdamW, as `torch.optim` takes it, for one client or under `vmap`.

An optimiser is a value. What it remembers between steps, its slots, is a tree that lies beside the model in a task's
carry. Only the names in `slope` are walked: a model may hold entries that are not trained.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor

from umbel import ops, tree
from umbel.errors import unknown
from umbel.tree import Params, Tree

Rate: TypeAlias = float | Tensor  # a number; on a GPU a 0-d tensor, so that a schedule records no CUDA graph anew
OPTIONS = ("momentum", "optimiser", "nesterov", "weight_decay")  # what `optimiser_of` reads
OPTIMISERS = ("sgd", "adam", "adamw")


class Optimiser(Protocol):
    """What a step of training needs."""

    def begin(self, params: Params) -> Tree:
        """The slots of these parameters, at rest."""
        ...

    def update(self, params: Params, slope: Params, slots: Tree, lr: Rate) -> tuple[Params, Tree]:
        """One step: new parameters and slots. On a GPU the old ones may have been written over."""
        ...

    def update_here(self, params: Params, slope: Params, slots: Tree, lr: float) -> None:
        """One step, written over parameters and slots: less memory to go through, most of a small step on a CPU."""
        ...


@dataclass(frozen=True)
class SGD:
    """v <- momentum v + g, w <- w - lr v; with nesterov, w <- w - lr (g + momentum v). Decay adds to the slope."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def begin(self, params: Params) -> Tree:
        """No velocity where there is no momentum."""
        return {"velocity": tree.zeros_like(params)} if self.momentum else {}

    def update(self, params: Params, slope: Params, slots: Tree, lr: Rate) -> tuple[Params, Tree]:
        """Step sizes are applied with one rounding: w + (-lr) * g as two operations would change the last bits."""
        if self.weight_decay:
            slope = tree.plus(slope, {name: params[name] for name in slope}, self.weight_decay)
        if not self.momentum:
            return tree.plus(params, slope, lr, -1), slots
        velocity = slots["velocity"]
        if self.nesterov:
            moved = tree.plus(slope, {name: velocity[name] for name in slope}, self.momentum)
            after = tree.plus(params, tree.plus(slope, moved, self.momentum), lr, -1)
            return after, {**slots, "velocity": {**velocity, **moved}}
        w, v = ops.sgd([params[name] for name in slope], [velocity[name] for name in slope], list(slope.values()), lr,
                       self.momentum)
        moved = {**velocity, **dict(zip(slope, v, strict=True))}
        return {**params, **dict(zip(slope, w, strict=True))}, {**slots, "velocity": moved}

    def update_here(self, params: Params, slope: Params, slots: Tree, lr: float) -> None:
        """The same bits as `update`."""
        for name, change in slope.items():
            if self.weight_decay:
                change = change.add(params[name], alpha=self.weight_decay)
            if self.momentum:
                velocity = slots["velocity"][name]
                torch.add(change, velocity, alpha=self.momentum, out=velocity)
                change = change.add(velocity, alpha=self.momentum) if self.nesterov else velocity
            params[name].add_(change, alpha=-lr)


@dataclass(frozen=True)
class Adam:
    """m and v follow g and g^2, both unbiased by the number of steps; w <- w - lr m / (sqrt(v) + eps)."""

    weight_decay: float = 0.0  # adds to the slope
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    decoupled: ClassVar[bool] = False  # whether decay shrinks the weights instead

    def begin(self, params: Params) -> Tree:
        """Nothing seen, no step taken."""
        some = next(iter(params.values()))
        return {"first": tree.zeros_like(params), "second": tree.zeros_like(params),
                "step": some.new_zeros((), dtype=torch.float32)}

    def update(self, params: Params, slope: Params, slots: Tree, lr: Rate) -> tuple[Params, Tree]:
        """The number of steps is a tensor, each client's own: 1 - beta^step by expm1, exact also in float32."""
        step = slots["step"] + 1
        rate = lr / -torch.expm1(step * math.log(self.beta1))
        root = (-torch.expm1(step * math.log(self.beta2))).sqrt()
        after, first, second = dict(params), dict(slots["first"]), dict(slots["second"])
        for name, change in slope.items():
            w = params[name]
            if self.weight_decay and self.decoupled:
                w = w * (1 - lr * self.weight_decay)
            elif self.weight_decay:
                change = torch.add(change, w, alpha=self.weight_decay)
            first[name] = torch.lerp(first[name], change, 1 - self.beta1)
            second[name] = torch.addcmul(self.beta2 * second[name], change, change, value=1 - self.beta2)
            after[name] = w - rate * (first[name] / (second[name].sqrt() / root + self.eps))
        return after, {**slots, "first": first, "second": second, "step": step}

    def update_here(self, params: Params, slope: Params, slots: Tree, lr: float) -> None:
        """For one client, whose steps are counted by a plain number."""
        steps = float(slots["step"].add_(1))
        rate, root = lr / (1 - self.beta1**steps), math.sqrt(1 - self.beta2**steps)
        for name, change in slope.items():
            w, first, second = params[name], slots["first"][name], slots["second"][name]
            if self.weight_decay and self.decoupled:
                w.mul_(1 - lr * self.weight_decay)
            elif self.weight_decay:
                change = change.add(w, alpha=self.weight_decay)
            first.lerp_(change, 1 - self.beta1)
            second.mul_(self.beta2).addcmul_(change, change, value=1 - self.beta2)
            w.addcdiv_(first, second.sqrt().div_(root).add_(self.eps), value=-rate)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose decay shrinks the weights by lr * weight_decay, apart from the slope."""

    decoupled: ClassVar[bool] = True


def optimiser_of(*, optimiser: str = "sgd", momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0,
                 **_: Any) -> Optimiser:
    """The optimiser that a task's flat options mean; other options are not its own."""
    if optimiser not in OPTIMISERS:
        raise unknown("optimiser", optimiser, OPTIMISERS)
    if optimiser == "sgd":
        return SGD(momentum, nesterov, weight_decay)
    return (Adam if optimiser == "adam" else AdamW)(weight_decay)
