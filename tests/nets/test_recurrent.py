"""Recurrent networks of the user's own: their layers give tuples, and torch's fused ones have no rule for vmap.

Tests turn warnings into errors, so torch's own about a slow vmap would fail them.
"""

import pytest
import torch
from torch import nn

import umbel
from umbel import tree
from umbel.engines.simulator import Simulator
from umbel.nets.model import Batch
from umbel.nets.wrap import wrap


class ByRow(nn.Module):
    """Reads an image of 8 x 8 row by row, and classifies the last output."""

    def __init__(self, layer: type[nn.RNNBase], **options: int) -> None:
        super().__init__()
        self.rows = layer(8, 16, batch_first=True, **options)
        self.out = nn.Linear(16 * (1 + self.rows.bidirectional), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.rows(x.flatten(1, 2))[0][:, -1])
        return y


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_network_trains(layer):
    """In the default engine, clients side by side, and in the loop: the same model to rounding, and not the first."""
    def trained(engine):
        fed = umbel.simulate("digits", clients=4, model=lambda: ByRow(layer), engine=engine, device="cpu")
        assert not isinstance(fed, Simulator) or fed.vectorise
        return fed.net, umbel.run(umbel.FedAvg(local=umbel.Local(epochs=1)), fed, rounds=1).state.models

    (net, together), (_, one_by_one) = trained("simulator"), trained("loop")
    assert torch.allclose(tree.flat(together), tree.flat(one_by_one), atol=1e-5)
    assert (tree.flat(together) - tree.flat(tree.stack([net.init(0)]))).abs().max() > 1e-3


@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bidirectional": True}])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_stacked_gradients_of_deeper_ones_are_those_of_one_client(layer, options):
    """Each client's under vmap equals its own by autograd; and what vmap needed off is on again."""
    net = wrap(lambda: ByRow(layer, **options), (1, 8, 8), 10)
    params, x, y = [net.init(seed) for seed in (0, 1)], torch.rand(2, 5, 1, 8, 8), torch.arange(10).view(2, 5)
    many = net.vectorised()
    before = torch.backends.mkldnn.enabled
    together = torch.vmap(lambda *one: many.gradient(one[0], Batch(*one[1:])))(tree.stack(params), x, y)
    assert torch.backends.mkldnn.enabled == before
    for k, slopes in enumerate(tree.unstack(together)):
        alone = net.gradient(params[k], Batch(x[k], y[k]))
        assert all(torch.allclose(slopes[name], alone[name], atol=1e-6) for name in alone)


def test_the_memory_of_a_recurrent_network_is_counted():
    """Seven numbers a unit and row of the image, and as many for the states at the end; twice for two layers."""
    one, two = (wrap(lambda layers=layers: ByRow(nn.LSTM, num_layers=layers), (1, 8, 8), 10) for layers in (1, 2))
    assert one.activations == 7 * 16 * (8 + 2) + 10
    assert two.activations == 2 * 7 * 16 * (8 + 2 * 2) + 10
