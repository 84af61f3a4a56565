"""Scoring a model on a client's rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from umbel import tree
from umbel.federation.tasks import SIZE, Leaf, Of, Reply, Rows, register
from umbel.federation.training import STEP
from umbel.nets.model import Model
from umbel.nets.objective import BROKEN
from umbel.tree import Params, Tree

FAR = 1e150  # no sum over a client's rows is farther from 0: of squares of float32 in units of 1e30 at most


def _judged(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    out = net.logits(params, x)
    return {"loss": net.objective.row_loss(out, y), "judged": net.objective.row_values(out, y)}


def _tally(net: Model, values: Tree, **_: Any) -> Reply:
    loss = values["loss"].double().mean().nan_to_num(nan=BROKEN, posinf=BROKEN, neginf=BROKEN)
    sums = tree.to(net.objective.tally(values["judged"]), "cpu")
    return Reply({**sums, "loss": loss.cpu(), "size": torch.tensor(len(values["loss"]))})


def _tallied(net: Model, **_: Any) -> Tree:
    counts = net.objective.counts
    sums = {name: _counted(shape, Of(*counts[name]), partial(net.objective.agrees, name)) if name in counts
            else _number(shape) for name, shape in net.objective.sums.items()}
    return {**sums, "loss": _number(()), "size": SIZE}


def _number(shape: tuple[int, ...]) -> Leaf:
    return Leaf(shape, torch.float64, least=-FAR, most=FAR)


def _counted(shape: tuple[int, ...], among: Of, agrees: Callable[[Tensor], Tensor]) -> Leaf:
    """Numbers that count: the one there is, or all of a line together, are no more than what they are counted among."""
    leaf = Leaf(shape, torch.float64, least=0, agrees=agrees)
    return leaf._replace(total=among) if shape else leaf._replace(most=among)


score = register(Rows("score", _judged, _tally, answers=_tallied, options=("become", *STEP)))
"""What the objective sums, and the mean loss, over a client's rows: of the model sent, or what `become` makes of it."""


def _losses(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    return {"loss": net.objective.row_loss(net.logits(params, x), y)}


def _contrast(net: Model, values: Tree, **_: Any) -> Reply:
    first, second = values["loss"].double().nan_to_num(nan=BROKEN).clamp(-BROKEN, BROKEN).cpu()  # (rows,) each
    gains = first - second
    return Reply({"gain": gains.sum(), "squares": (gains**2).sum(), "size": torch.tensor(len(gains))})


contrast = register(Rows("contrast", _losses, _contrast, answers=lambda net, **_: {
    "gain": _number(()), "squares": _number(())._replace(least=0), "size": SIZE}))
"""How much lower the second of two models makes the loss of a client's rows: its sum over rows, and that of squares."""
