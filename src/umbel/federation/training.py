"""Local training: `train`, `fine_tune` and `remembered`, and the pieces that methods build their own of."""

from dataclasses import replace
from typing import Any

from umbel.federation.tasks import COUNT, Client, Loop, Plain, Reply, a_model, like, register
from umbel.nets.model import Batch, Model
from umbel.nets.optimiser import OPTIONS, Rate, optimiser_of
from umbel.tree import Params, Tree

STEP = ("lr", *OPTIONS, "only")  # options of `begin_training` and `train_step`: see Local.at
TRAINING = (*STEP, "send", "keep")  # and of `send_model`


def begin_training(net: Model, client: Client, *, model: Params, only: tuple[str, ...] = (),
                   **options: Any) -> tuple[Tree, Tree]:
    """Start at the model that was sent, with the optimiser at rest; its slots lie beside the model in the carry."""
    slots = optimiser_of(**options).begin({name: model[name] for name in only or model})
    return {"model": model, **slots}, {}


def descend(net: Model, carry: Tree, slope: Params, *, lr: Rate, **options: Any) -> Tree:
    """One step of the optimiser that the options mean, down the slope; for one client it is written over the carry."""
    optimiser, model = optimiser_of(**options), carry["model"]
    slots = {name: part for name, part in carry.items() if name != "model"}
    if net.functional:
        model, slots = optimiser.update(model, slope, slots, lr)
        return {"model": model, **slots}
    optimiser.update_here(model, slope, slots, float(lr))
    return carry


def train_step(net: Model, carry: Tree, fixed: Tree, batch: Batch, *, only: tuple[str, ...] = (),
               **options: Any) -> Tree:
    """One step of training, on all parameters or on those named in `only`."""
    return descend(net, carry, net.gradient(carry["model"], batch, only), **options)


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


def _recall(net: Model, client: Client, *, model: Params, **_: Any) -> Reply:
    return Reply({"model": client.memory.get("last", model), "size": client.size})


train = register(Loop("train", begin_training, train_step, send_model, answers=_sent, options=TRAINING))
"""Local training from the model that was sent."""

fine_tune = register(replace(train, name="fine_tune", finish=_only_model, answers=a_model, options=STEP))
"""Local training that leaves no trace: what a client would do with the model it was given."""

remembered = register(Plain("remembered", _recall))
"""The model as it was after the client's own last training; the one sent, where it never trained."""
