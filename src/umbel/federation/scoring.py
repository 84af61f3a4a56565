"""Scoring a model on a client's rows."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from umbel.federation.tasks import COUNT, Leaf, Reply, Rows, register
from umbel.federation.training import STEP
from umbel.nets.model import Model
from umbel.tree import Params, Tree

BROKEN = 1e6  # the loss of a model that gives no numbers: it is scored, not left out of the mean


def _hits(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    logits = net.logits(params, x)
    return {"hit": logits.argmax(1) == y, "loss": cross_entropy(logits, y, reduction="none")}


def _tally(net: Model, values: Tree, **_: Any) -> Reply:
    loss = values["loss"].double().mean().nan_to_num(nan=BROKEN, posinf=BROKEN)
    total = torch.tensor(len(values["hit"]))
    return Reply({"hits": values["hit"].sum().cpu(), "loss": loss.cpu(), "size": total})


def _tallied(net: Model, **_: Any) -> Tree:
    return {"hits": COUNT, "loss": Leaf((), torch.float64), "size": COUNT}


score = register(Rows("score", _hits, _tally, answers=_tallied, options=("become", *STEP)))
"""Hits and mean loss on a client's rows, with the model sent or what the tasks in `become` make of it."""
