"""Networks for tables, series and texts by name: torch's own numbers, from weights of the same names."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import conv1d, one_hot, pad

from umbel import UmbelError, tree
from umbel.nets.model import Batch
from umbel.nets.networks import Columns, embedding_size
from umbel.nets.objective import Classify, NextToken, Regress
from umbel.nets.sequences import GRU, CausalConv1d, CausalConvolutions
from umbel.nets.wrap import build

KINDS = {
    "gru-series": lambda: build("gru", (12, 4), Regress(3)),
    "gru-mixed": lambda: build("gru", (12, 4), 3, levels=(0, 5, 0, 0)),
    "gru-texts": lambda: build("gru", (9,), NextToken(7, 9), tokens=True),
    "gru-last": lambda: build("gru", (9,), NextToken(7), tokens=True),
    "tcn-series": lambda: build("tcn", (12, 4), Regress(3)),
    "tcn-texts": lambda: build("tcn", (9,), NextToken(7, 9), tokens=True),
    "mlp-table": lambda: build("mlp", (4,), 3, levels=(0, 5, 0, 2)),
    "linear-table": lambda: build("linear", (4,), 3, levels=(0, 5, 0, 2)),
    "linear-series": lambda: build("linear", (12, 4), Regress(3)),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def rows(net, count, seed=0):
    """Inputs and targets that fit a model; codes of categories below their levels."""
    rng = torch.Generator().manual_seed(seed)
    goal = net.objective
    x = torch.randn(count, *net.shape, generator=rng)
    if net.tokens:
        x = torch.randint(7, (count, *net.shape), generator=rng)
    for column, levels in enumerate(net.levels):
        if levels:
            x[..., column] = torch.randint(levels, x.shape[:-1], generator=rng).float()
    y = torch.randn(count, *goal.target, generator=rng)
    return x, y if isinstance(goal, Regress) else torch.randint(goal.outputs, (count, *goal.target), generator=rng)


def test_a_gru_is_torchs():
    """The same weights, loaded by name, give the same states and slopes to 1e-6."""
    own, theirs = GRU(5, 8), nn.GRU(5, 8, batch_first=True)
    theirs.load_state_dict(own.state_dict())
    x = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    states, expected = own(x), theirs(x)[0]
    assert torch.allclose(states, expected, atol=1e-6)
    weigh = torch.linspace(-1, 1, states.numel()).view_as(states)
    for out in (states, expected):
        (out * weigh).sum().backward()
    assert all(torch.allclose(a.grad, b.grad, atol=1e-6)
               for a, b in zip(own.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_a_causal_convolution_is_torchs_behind_zeros(dilation):
    """To 1e-6, and the input's last axis is that of features."""
    own = CausalConv1d(5, 6, 3, dilation=dilation)
    x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0))
    expected = conv1d(pad(x.mT, (2 * dilation, 0)), own.weight, own.bias, dilation=dilation).mT
    assert torch.allclose(own(x), expected, atol=1e-6)


@pytest.mark.parametrize(("time", "layers"), [(1, 1), (3, 1), (4, 2), (7, 2), (24, 4), (80, 6)])
def test_causal_convolutions_see_all_that_was_and_nothing_that_comes(time, layers):
    """The last place changes with the first input, the first with no later one; no layer more than needed."""
    torch.manual_seed(0)
    body, x = CausalConvolutions(2, 32, time), torch.randn(1, time, 2)
    first = torch.cat([x[:, :1] + 1, x[:, 1:]], 1)
    assert len(body.layers) == layers
    assert (body(first)[:, -1] - body(x)[:, -1]).abs().max() > 0
    assert torch.equal(body(torch.cat([x[:, :1], x[:, 1:] + 1], 1))[:, 0], body(x)[:, 0])


def test_columns_by_hand():
    """Numbers in their places, a category as 0s and a 1, or as its row of an embedding."""
    x = torch.tensor([[0.5, 2, -1, 7, 0], [0.25, 0, 3, 8, 1]])
    plain = Columns((0, 3, 0, 0, 2), None)
    assert plain(x).tolist() == [[0.5, 0, 0, 1, -1, 7, 1, 0], [0.25, 1, 0, 0, 3, 8, 0, 1]]
    assert (plain.width, list(plain.parameters())) == (8, [])
    learnt = Columns((0, 3, 0, 0, 2), embedding_size)
    assert {name: tuple(leaf.shape) for name, leaf in learnt.named_parameters()} == {
        "embeddings.1.weight": (3, 3), "embeddings.4.weight": (2, 2)}
    assert torch.equal(learnt(x)[:, 1:4], learnt.embeddings["1"].weight[[2, 0]])
    assert learnt(x)[:, [0, 4, 5]].tolist() == [[0.5, -1, 7], [0.25, 3, 8]]


def test_a_linear_model_of_a_table_has_a_weight_for_each_level():
    """The same as a linear layer on numbers and one-hot codes."""
    net = KINDS["linear-table"]()
    x, _ = rows(net, 6)
    params = net.init(0)
    flat = torch.cat([x[:, :1], one_hot(x[:, 1].long(), 5), x[:, 2:3], one_hot(x[:, 3].long(), 2)], 1)
    assert torch.equal(net.logits(params, x), nn.functional.linear(flat, params["1.weight"], params["1.bias"]))


@pytest.mark.parametrize(("levels", "size"), [(1, 2), (2, 2), (3, 3), (5, 4), (29, 16), (30, 16), (75, 16), (9999, 16)])
def test_size_of_an_embedding(levels, size):
    """Half as many and one, sixteen at most."""
    assert embedding_size(levels) == size


@kinds
def test_stacked_gradients_are_those_of_one_client(kind):
    """Under vmap, without a warning, each client's equals its own by autograd within 1e-6; padding changes nothing."""
    net = KINDS[kind]()
    params = [net.init(seed) for seed in (0, 1)]
    x, y = (torch.stack(parts) for parts in zip(*(rows(net, 5, seed) for seed in (0, 1)), strict=True))
    live = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    many = net.vectorised()
    with warnings.catch_warnings(action="error"):
        together = torch.vmap(lambda *one: many.gradient(one[0], Batch(*one[1:])))(tree.stack(params), x, y, live)
    for k, slopes in enumerate(tree.unstack(together)):
        alone = net.gradient(params[k], Batch(x[k][live[k]], y[k][live[k]]))
        assert all(torch.allclose(slopes[name], alone[name], atol=1e-6) for name in alone)


def test_codes_are_not_scaled():
    """One mean for all columns, or one for each: a category's stays 0, its deviation 1."""
    for mean, std in (((0.5,), (2.0,)), ((0.5, 9.0, 0.5, 9.0), (2.0, 9.0, 2.0, 9.0))):
        net = build("mlp", (4,), 3, mean, std, levels=(0, 5, 0, 2))
        assert (net.mean.tolist(), net.std.tolist()) == ([0.5, 0, 0.5, 0], [2, 1, 2, 1])


def test_series_are_scaled_by_feature():
    """Not by time, as the first axis of an image is scaled."""
    net = build("linear", (3, 2), 2, (1.0, 2.0), (1.0, 4.0))
    same = build("linear", (3, 2), 2)
    x = torch.arange(6.0).view(1, 3, 2)
    scaled = torch.tensor([[[-1, -0.25], [1, 0.25], [3, 0.75]]])
    assert torch.equal(net.logits(net.init(0), x), same.logits(net.init(0), scaled))


@pytest.mark.parametrize(("name", "shape", "words", "says"), [
    ("gru", (10,), {}, "The model 'gru' takes series (time, features) or int64 tokens (places). Got inputs of shape"
                       " (10,): take 'mlp'"),
    ("tcn", (1, 8, 8), {}, "The model 'tcn' takes series (time, features) or int64 tokens (places)."),
    ("resnet9", (24, 11), {}, "The model 'resnet9' takes images (channels, height, width). Got inputs of shape"
                              " (24, 11)"),
    ("linear", (9,), {"tokens": True}, "The model 'linear' takes numbers, and int64 inputs are tokens: give float32,"
                                       " take 'gru', or"),
    ("gru", (9,), {"tokens": True}, "The model 'gru' must know how many tokens there are, and its objective does not"
                                    " say"),
    ("mlp", (4,), {"levels": (0, 3)}, "The 'levels' of inputs are one number a column, 0 for a number, else how many"
                                      " levels there are. Got 2 for inputs of shape (4,)."),
    ("lenet5", (1, 28, 28), {"levels": (3,) * 28}, "The 'levels' of inputs are one number a column"),
])
def test_what_a_network_does_not_take_is_refused_in_a_sentence(name, shape, words, says):
    """Which inputs it takes, and what else to do."""
    with pytest.raises(UmbelError) as error:
        build(name, shape, Classify(2), **words)
    assert str(error.value).startswith(says)
