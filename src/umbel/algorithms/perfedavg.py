"""Per-FedAvg: learn a model from which one step of a client's own training goes far.

Fallah et al. Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach.
NeurIPS 2020. https://arxiv.org/abs/2002.07948
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from umbel import tree
from umbel.algorithms.base import Algorithm, Local, State, averaged, one_cluster, training
from umbel.algorithms.server import SERVERS
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation
from umbel.federation.tasks import Client, Loop, register
from umbel.federation.training import send_model
from umbel.fields import choice, number
from umbel.nets.model import Batch, Model
from umbel.tree import Held, Params, Tree

NUDGE = 1e-3  # delta of the Hessian-free difference


def _begin(net: Model, client: Client, *, model: Params, **_: Any) -> tuple[Tree, Tree]:
    return {"model": model}, {}


def _part(batch: Batch, which: int, size: int) -> Batch:
    rows = slice(which * size, (which + 1) * size)
    key = None if batch.key is None else batch.key + which  # every part has masks of its own
    live, weight = (None if part is None else part[rows] for part in (batch.live, batch.weight))
    return Batch(batch.x[rows], batch.y[rows], live, key, weight)


def _step(net: Model, carry: Tree, fixed: Tree, batch: Batch, *, lr: float, outer: float, size: int,
          hessian_free: bool, **_: Any) -> Tree:
    first, second, third = (_part(batch, which, size) for which in range(3))
    if not len(second.y) or (hessian_free and not len(third.y)):
        return carry  # a short last batch has no second half: no step
    model = carry["model"]
    slope, seen = net.gradient_and_statistics(model, first)
    ahead = {**tree.plus(model, slope, lr, -1), **seen}  # w~ = w - alpha g(w; D1)
    slope, later = net.gradient_and_statistics(ahead, second)  # g(w~; D2)
    seen = {**seen, **later}  # the running statistics of both batches
    if hessian_free:  # (I - alpha H(w; D3)) slope
        there, here = (net.gradient(tree.plus(model, slope, way), third) for way in (NUDGE, -NUDGE))
        slope = tree.plus(slope, tree.minus(there, here), -lr / (2 * NUDGE))
    last = third.live if hessian_free else second.live
    if last is not None:  # padding in its place: no step, and nothing was seen
        whole = last.any()
        slope = {name: torch.where(whole, leaf, 0.0) for name, leaf in slope.items()}
        seen = {name: torch.where(whole, leaf, model[name]) for name, leaf in seen.items()}
    return {"model": {**tree.plus(model, slope, outer, -1), **seen}}  # w <- w - beta ...


meta_train = register(Loop(
    "meta_train", _begin, _step, send_model, options=("lr", "outer", "size", "hessian_free", "send", "keep"),
    changing=("outer",)))


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """First-order model-agnostic meta-learning, judged after adaptation.

    Plain SGD in both steps: momentum, as in some public codes, contaminates one with the other. `local.lr` is alpha,
    the step that adapts; batches are drawn as pairs (triples, Hessian-free). A schedule acts on beta, the step that
    trains: alpha is what clients adapt by at the end.
    """

    outer: float = number(0.001, gt=0)  # beta
    order: str = choice("first", "first", "hessian-free")
    local: Local = training(momentum=0.0)

    name: ClassVar[str] = "perfedavg"
    servers: ClassVar[tuple[str, ...]] = SERVERS
    headline: ClassVar[str] = "fine_tuned"
    private_norms: ClassVar[bool] = False
    optimisers: ClassVar[tuple[str, ...]] = ("sgd",)
    optimisers_because: ClassVar[str] = "what it learns is the start of one plain gradient step"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.weight_decay:
            raise UmbelError("The 'weight_decay' of perfedavg must be 0, since both of its steps are plain gradient"
                             f" steps. Got {self.local.weight_decay:g} instead.")

    def init(self, fed: Federation, seed: int) -> State:
        """One random model."""
        return one_cluster(fed, seed)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """FedAvg's round with another local step."""
        parts = 2 if self.order == "first" else 3
        heard = fed.map(
            meta_train, cohort, work=self.local.work._replace(batch=parts * self.local.batch),
            each={"model": Held(state.models, state.labels[cohort.ids])}, lr=self.local.lr,
            outer=self.outer * self.local.share(cohort.round), size=self.local.batch, hessian_free=parts == 3,
        )
        return averaged(fed, state, heard, self.server_rule)
