"""Losses that people write themselves, through an objective."""

from dataclasses import dataclass, replace

import pytest
import torch
from helpers import ENGINES, LOCAL, SEED, gap, play, tiny_model, tiny_population
from torch import Tensor
from torch.nn.functional import cross_entropy

from umbel.algorithms import IFCA, FedAvg
from umbel.nets.model import Batch
from umbel.nets.objective import OBJECTIVES, Classify, Objective, objective_of
from umbel.tree import take


@dataclass(frozen=True)
class Focal(Classify):
    """(1 - p)^2 of the cross-entropy: easy rows count less."""

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        loss = cross_entropy(out, y, reduction="none")
        return (1 - torch.exp(-loss)) ** 2 * loss


def focal_model():
    return replace(tiny_model(), objective=Focal(3))


@pytest.mark.parametrize("method", [FedAvg(local=LOCAL), IFCA(2, local=LOCAL)], ids=["fedavg", "ifca"])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "loop"])
def test_an_own_loss_trains_alike_on_every_engine(method, engine) -> None:
    """Two rounds by focal loss: the same labels and models as in the plain loop."""
    ends = [(play(method, fed, rounds=2)) for fed in (make(focal_model(), tiny_population(), SEED)
                                                      for make in (ENGINES["loop"], ENGINES[engine]))]
    assert ends[0].labels.tolist() == ends[1].labels.tolist()
    assert gap(take(ends[0].models, 0), take(ends[1].models, 0)) < 1e-5


def test_an_own_loss_is_the_one_that_is_differentiated() -> None:
    """The gradient is that of the mean of the own row losses, and not of cross-entropy."""
    net = focal_model()
    params = net.init(1)
    batch = Batch(torch.rand(4, 1, 3, 3), torch.tensor([0, 1, 2, 1]))
    leaves = {name: leaf.clone().requires_grad_(True) for name, leaf in params.items()}
    out = torch.func.functional_call(net.module, leaves, (batch.x,))
    chance = out.softmax(1)[torch.arange(4), batch.y]
    slopes = torch.autograd.grad((-((1 - chance) ** 2) * chance.log()).mean(), list(leaves.values()))
    for mine, literal in zip(net.gradient(params, batch).values(), slopes, strict=True):
        torch.testing.assert_close(mine, literal)


def test_an_own_loss_is_read_back_as_what_it_judges_by() -> None:
    """A file knows the kind alone: focal loss is a classification; an objective of an own kind is found by it."""
    assert type(objective_of(Focal(3).described())) is Classify
    try:
        @dataclass(frozen=True)
        class Ranked(Classify):
            kind = "ranked"

        assert type(objective_of(Ranked(4).described())) is Ranked
        assert issubclass(OBJECTIVES["ranked"], Objective)
    finally:
        OBJECTIVES.pop("ranked", None)
