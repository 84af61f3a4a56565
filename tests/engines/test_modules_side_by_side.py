"""Networks with BatchNorm, dropout and frozen layers train alike on every engine, in every method."""

from dataclasses import replace

import pytest
import torch
from helpers import ALL, CLASSES, ENGINES, LOCAL, SEED, TRUTH, gap, models_by_name, play, tiny_population
from networks import Double, dropout_net, eight_clients, resnet18_in_double
from torch import nn

from umbel.algorithms import FLAG, FedAvg, FedBN, Local
from umbel.engines import LoopEngine, Simulator
from umbel.errors import UmbelError
from umbel.federation import ledger
from umbel.nets.model import Model
from umbel.nets.wrap import wrap

SMALL = Local(lr=0.01, momentum=0.5, epochs=1, batch=8)


def tiny() -> nn.Module:
    """9 - 8 - 8 - 3 with BatchNorm and dropout, and a first layer that is frozen; float64, which rounds too little."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(),
                           nn.Dropout(0.3), nn.Linear(8, CLASSES))
    module[1].requires_grad_(False)
    return Double(module)


def tiny_model() -> Model:
    return wrap(tiny, (1, 3, 3), CLASSES, name="tiny")


@pytest.mark.parametrize("network", [resnet18_in_double, dropout_net])
@pytest.mark.parametrize("method", [FedAvg, FedBN, FLAG])
def test_large_networks_train_side_by_side(network, method):
    """A ResNet-18, a network with dropout: labels and bytes equal, weights and norms within 1e-4 after two rounds."""
    algorithm = FLAG(gradient_epochs=1, cut="gap", local=SMALL) if method is FLAG else method(local=SMALL)
    people = eight_clients()
    loop, many = LoopEngine(network(), people, SEED), Simulator(network(), people, SEED, vectorise=True)
    a, b = (play(algorithm, fed, rounds=2) for fed in (loop, many))
    assert torch.equal(a.labels, b.labels)
    assert gap(a.models, b.models) < 1e-4
    pages, others = loop.memory()[0], many.memory()[0]
    assert all(("norms" in page) == (method is FedBN and bool(loop.net.norms)) for page in pages.values())
    assert all(gap(page[kind], others[name][kind]) < 1e-4 for name, page in pages.items() for kind in page)
    assert ledger.totals(loop.ledger.lines) == ledger.totals(many.ledger.lines)


@pytest.mark.parametrize("norms", ["shared", "private"])
@pytest.mark.parametrize("name", ALL)
def test_every_method_trains_such_networks(name, norms):
    """Statistics, masks and a frozen layer: two engines agree. Who cannot leave norms at the clients says so."""
    local = replace(LOCAL, norms=norms)
    if norms == "private" and not type(ALL[name].make(LOCAL, TRUTH)).private_norms:
        with pytest.raises(UmbelError, match=r"The 'norms' of .* must be 'shared'. Got 'private' instead"):
            ALL[name].make(local, TRUTH)
        return
    algorithm = ALL[name].make(local, TRUTH)
    loop, many = (ENGINES[kind](tiny_model(), tiny_population(), SEED) for kind in ("loop", "simulator"))
    a, b = (play(algorithm, fed, rounds=2) for fed in (loop, many))
    assert torch.equal(a.labels, b.labels)
    mine, theirs = models_by_name(loop, a), models_by_name(many, b)
    assert max(gap(mine[client], theirs[client]) for client in mine) < 1e-7
    assert ledger.totals(loop.ledger.lines) == ledger.totals(many.ledger.lines)


@pytest.mark.parametrize("method", [FedAvg, FedBN])
def test_flower_nodes_agree_with_the_loop(method):
    """To the last bit: models, and the norms that a node keeps."""
    loop, nodes = (ENGINES[kind](tiny_model(), tiny_population(), SEED) for kind in ("loop", "flower"))
    a, b = (play(method(local=LOCAL), fed, rounds=2) for fed in (loop, nodes))
    assert gap(a.models, b.models) == 0
    pages, others = loop.memory()[0], nodes.memory()[0]
    assert all(gap(page[kind], others[name][kind]) == 0 for name, page in pages.items() for kind in page)
    assert ledger.totals(loop.ledger.lines) == ledger.totals(nodes.ledger.lines)


class Peeking(nn.Module):
    """Reads a number in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm2d(1), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.norm(x).flatten(1)) * float(x.abs().max().item() > 0)
        return y


def test_a_network_that_reads_numbers_is_sent_to_the_loop():
    """One sentence for vmap's refusal; the loop engine trains it."""
    net = wrap(Peeking, (1, 3, 3), 3, name="peeking")
    with pytest.raises(UmbelError, match=r"'peeking' cannot be vectorised over clients.*--engine loop"):
        play(FedAvg(local=LOCAL), Simulator(net, tiny_population(), SEED, vectorise=True))
    play(FedAvg(local=LOCAL), LoopEngine(net, tiny_population(), SEED), rounds=1)
