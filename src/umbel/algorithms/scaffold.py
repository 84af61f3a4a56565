"""SCAFFOLD: correct each client's drift by control variates.

Karimireddy et al. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML 2020.
https://arxiv.org/abs/1910.06378 (Algorithm 1, option II)
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, averaged, can_remember, one_cluster, training
from umbel.federation.door import Cohort, Federation
from umbel.federation.tasks import SIZE, Client, Loop, Reply, like, register
from umbel.federation.training import STEP, begin_training, descend, noted
from umbel.nets.model import Batch, Model
from umbel.tree import Params, Tree


def _begin(net: Model, client: Client, *, model: Params, control: Params, **options: Any) -> tuple[Tree, Tree]:
    carry, _ = begin_training(net, client, model=model, **options)
    return carry, {"start": model, "shift": tree.minus(control, client.memory["control"])}  # c - c_i


def _step(net: Model, carry: Tree, fixed: Tree, batch: Batch, **options: Any) -> Tree:
    slope, statistics = net.gradient_and_statistics(carry["model"], batch)
    return noted(descend(net, carry, tree.plus(slope, fixed["shift"]), **options), statistics)


def _finish(net: Model, client: Client, carry: Tree, fixed: Tree, *, lr: float, momentum: float, keep: bool,
            **_: Any) -> Reply:
    way = client.steps.clamp(min=1) * lr / (1 - momentum)  # K lr, with the gain of momentum
    model, start = carry["model"], fixed["start"]
    change = {name: (start[name] - model[name]) / way - shift for name, shift in fixed["shift"].items()}
    change = {name: leaf - client.memory["control"][name] for name, leaf in change.items()}
    control = tree.plus(client.memory["control"], change)
    last = {"last": model} if keep else {}
    return Reply({"model": model, "control": change, "size": client.size}, keep={"control": control, **last})


def _answers(net: Model, **_: Any) -> Tree:
    return {"model": like(net.shapes), "control": like(net.zeros()), "size": SIZE}


controlled_train = register(Loop(
    "controlled_train", _begin, _step, _finish, answers=_answers, memory=lambda net, seed: {"control": net.zeros()},
    options=(*STEP, "keep")))


@dataclass(frozen=True)
class ScaffoldState(State):
    """With the server's control variate."""

    control: Params = field(default_factory=dict)  # c


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Federated averaging with control variates; without momentum, which the printed update does not foresee.

    With momentum the length of a step is divided by 1 - momentum; public codes that leave this out diverge.
    """

    local: Local = training(momentum=0.0)

    name: ClassVar[str] = "scaffold"
    optimisers: ClassVar[tuple[str, ...]] = ("sgd",)
    optimisers_because: ClassVar[str] = "its control variates are mean slopes, which sgd's steps add up to"
    servers_because: ClassVar[str] = "the control variates belong to the mean of the models"
    state: ClassVar[type[State]] = ScaffoldState
    private_norms: ClassVar[bool] = False

    def init(self, fed: Federation, seed: int) -> State:
        """One random model, no correction."""
        start = one_cluster(fed, seed)
        return ScaffoldState(start.models, start.labels, control=tree.to(fed.net.zeros(), fed.device))

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """w <- sum n_i w_i / sum n_i;  c <- c + sum of (c_i+ - c_i) / N."""
        assert isinstance(state, ScaffoldState)
        sent = {"model": tree.take(state.models, 0), "control": state.control}
        heard = fed.map(controlled_train, cohort, work=self.local.work, shared=sent, keep=can_remember(fed),
                        **self.local.at(cohort.round))
        change = tree.each(lambda leaf: leaf.sum(0), heard.answers["control"])
        control = tree.plus(state.control, change, 1 / len(fed.names))
        return replace(state, models=averaged(fed, state, heard).models, control=control)
