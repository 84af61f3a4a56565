"""Local training: `train`, `fine_tune` and `remembered`, and the pieces that methods build their own of."""

from dataclasses import replace
from typing import Any

from umbel import tree
from umbel.federation.tasks import SIZE, Client, Loop, Plain, Reply, a_model, like, register
from umbel.nets.model import Batch, Model
from umbel.nets.optimiser import OPTIONS, Rate, optimiser_of
from umbel.tree import Params, Tree

STEP = ("lr", *OPTIONS, "only")  # options of `begin_training` and `train_step`: see Local.at
TRAINING = (*STEP, "send", "keep")  # and of `send_model`


def begin_training(net: Model, client: Client, *, model: Params, only: tuple[str, ...] = (),
                   **options: Any) -> tuple[Tree, Tree]:
    """Start at the model that was sent, with the optimiser at rest; its slots lie beside the model in the carry."""
    slots = optimiser_of(**options).begin(tree.part(model, only or net.trained))
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
    """One step of training, on all that is trained or on the parameters named in `only`; running statistics follow."""
    slope, statistics = net.gradient_and_statistics(carry["model"], batch, only)
    return noted(descend(net, carry, slope, **options), statistics)


def noted(carry: Tree, statistics: Params) -> Tree:
    """The carry with the running statistics that a gradient came with."""
    return {**carry, "model": {**carry["model"], **statistics}} if statistics else carry


def send_model(net: Model, client: Client, carry: Tree, fixed: Tree, *, send: tuple[str, ...] = (),
               keep: bool = True, **_: Any) -> Reply:
    """Send the end of training (or the layers named in `send`) and keep it as the last local model."""
    model = carry["model"]
    sent = {name: model[name] for name in send or model}
    return Reply({"model": sent, "size": client.size}, keep={"last": model} if keep else {})


def _sent(net: Model, *, send: tuple[str, ...] = (), **_: Any) -> Tree:
    whole = like(net.shapes)
    return {"model": {name: whole[name] for name in send or whole}, "size": SIZE}


def _only_model(net: Model, client: Client, carry: Tree, fixed: Tree, **_: Any) -> Reply:
    return Reply({"model": carry["model"], "size": client.size})


def _recall(net: Model, client: Client, *, model: Params, **_: Any) -> Reply:
    return Reply({"model": client.memory.get("last", model), "size": client.size})


def private(task: Loop) -> Loop:
    """The same training by clients that keep their BatchNorm layers (`net.norms`) to themselves: `private_...`.

    A model comes without them, is completed by the client's own, and goes back without them. `keep_norms=False` leaves
    no trace: it is for trainings that only describe a client.
    """
    def begin(net: Model, client: Client, *, model: Params, **options: Any) -> tuple[Tree, Tree]:
        return task.begin(net, client, model={**model, **client.memory["norms"]}, **options)

    def finish(net: Model, client: Client, carry: Tree, fixed: Tree, *, keep_norms: bool = True,
               **options: Any) -> Reply:
        sent, kept = task.finish(net, client, carry, fixed, **options)
        own = {"norms": tree.part(carry["model"], net.norms)} if keep_norms else {}
        return Reply({**sent, "model": tree.without(sent["model"], net.norms)}, {**kept, **own})

    def answers(net: Model, **options: Any) -> Tree:
        whole = task.answers(net, **options)
        return {**whole, "model": tree.without(whole["model"], net.norms)}

    def memory(net: Model, seed: int) -> Tree:
        return {**task.memory(net, seed), **_first_norms(net, seed)}

    return replace(task, name=f"private_{task.name}", begin=begin, finish=finish, answers=answers, memory=memory,
                   options=(*task.options, "keep_norms"))


def _first_norms(net: Model, seed: int) -> Tree:
    return {"norms": net.first_norms()}


def _with_norms(net: Model, client: Client, *, model: Params, **_: Any) -> Reply:
    return Reply({"model": {**model, **client.memory["norms"]}, "size": client.size})


train = register(Loop("train", begin_training, train_step, send_model, answers=_sent, options=TRAINING))
"""Local training from the model that was sent."""

private_train = register(private(train))
"""The same by clients that keep their BatchNorm layers."""

with_norms = register(Plain("with_norms", _with_norms, memory=_first_norms))
"""The model that was sent, with the client's own BatchNorm layers."""

fine_tune = register(replace(train, name="fine_tune", finish=_only_model, answers=a_model, options=STEP))
"""Local training that leaves no trace: what a client would do with the model it was given."""

remembered = register(Plain("remembered", _recall))
"""The model as it was after the client's own last training; the one sent, where it never trained."""
