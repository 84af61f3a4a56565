"""Scoring a model on a client's rows."""

from typing import Any

import torch
from torch import Tensor

from umbel import tree
from umbel.federation.tasks import COUNT, Leaf, Reply, Rows, register
from umbel.federation.training import STEP
from umbel.nets.model import Model
from umbel.nets.objective import BROKEN
from umbel.tree import Params, Tree


def _judged(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    out = net.logits(params, x)
    return {"loss": net.objective.row_loss(out, y), "judged": net.objective.row_values(out, y)}


def _tally(net: Model, values: Tree, **_: Any) -> Reply:
    loss = values["loss"].double().mean().nan_to_num(nan=BROKEN, posinf=BROKEN, neginf=BROKEN)
    sums = tree.to(net.objective.tally(values["judged"]), "cpu")
    return Reply({**sums, "loss": loss.cpu(), "size": torch.tensor(len(values["loss"]))})


def _tallied(net: Model, **_: Any) -> Tree:
    sums = {name: Leaf(shape, torch.float64) for name, shape in net.objective.sums.items()}
    return {**sums, "loss": Leaf((), torch.float64), "size": COUNT}


score = register(Rows("score", _judged, _tally, answers=_tallied, options=("become", *STEP)))
"""What the objective sums, and the mean loss, over a client's rows: of the model sent, or what `become` makes of it."""
