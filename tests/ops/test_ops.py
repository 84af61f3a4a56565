"""Operations for stacked clients: the same functions and slopes as torch's own, under vmap and without."""

import sys

import pytest
import torch
from torch.func import grad
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d, relu

import umbel.ops
from umbel.ops import mean_loss, pooled_conv, sgd, sums

pooled, dense, loss, updates = (
    sys.modules[f"umbel.ops.{name}"] for name in ("pooled", "dense", "loss", "updates"))


def drawn(*shapes):
    maker = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=maker) for shape in shapes]


def same(a, b):
    assert torch.allclose(a, b, atol=1e-5), float((a - b).abs().max())


def convolved(x, weight, bias):
    return max_pool2d(relu(conv2d(x, weight, bias)), 2)


@pytest.mark.parametrize("side", [(8, 8), (9, 11)])
def test_a_pooled_convolution_is_its_three_parts(side):
    """Forwards and backwards, for one client and for stacked ones, also where a row is left over by the pooling."""
    x, weight, bias = drawn((3, 2, 2, *side), (3, 4, 2, 3, 3), (3, 4))

    def ours(weight, bias, x):
        return pooled._Pooled.apply(x, weight, bias)[0].sin().sum()

    def theirs(weight, bias, x):
        return convolved(x, weight, bias).sin().sum()

    for a, b in zip(torch.vmap(grad(ours, (0, 1, 2)))(weight, bias, x),
                    torch.vmap(grad(theirs, (0, 1, 2)))(weight, bias, x), strict=True):
        same(a, b)
    same(grad(ours)(weight[0], bias[0], x[0]), grad(theirs)(weight[0], bias[0], x[0]))
    assert torch.equal(pooled_conv(x[0], weight[0], bias[0], many=True), convolved(x[0], weight[0], bias[0]))


@pytest.mark.parametrize("side", [(8, 8), (9, 11)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_few_channels_in_pairs_are_the_same_convolution(side, layout):
    """Up to eight channels from a picture of several are computed two pixels at a time: the same values and slopes."""
    x, weight, bias = drawn((2, 3, *side), (6, 3, 3, 3), (6,))
    x = x.contiguous(memory_format=layout)
    same(pooled._in_pairs(x, weight), conv2d(x, weight)[..., : (side[1] - 2) // 2 * 2])

    def slopes(function):
        return grad(lambda *parts: function(*parts).sin().sum(), (0, 1, 2))(x, weight, bias)

    for a, b in zip(slopes(pooled_conv), slopes(convolved), strict=True):
        same(a, b)


def test_the_first_of_equals_wins_and_zero_wins_nothing():
    """Winners of a window: its first largest value, as in torch; none where ReLU made it zero."""
    x = torch.tensor([[1.0, 1.0, -1.0, -2.0], [1.0, 0.0, -3.0, -4.0]])[None, None, None]
    y, winner = pooled.forward(x, torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1))
    assert y.flatten().tolist() == [1, 0]
    assert winner.flatten().tolist() == [0, pooled.DEAD]


def test_nan_goes_through_a_pooled_convolution():
    """A client whose pixels are not numbers is not made to look sound."""
    x = torch.tensor([[1.0, float("nan")], [0.0, 2.0]])[None, None, None]
    assert pooled.forward(x, torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1))[0].isnan().all()


def test_a_dense_layer_is_linear():
    """Forwards and backwards under vmap."""
    x, weight, bias = drawn((3, 5, 7), (3, 4, 7), (3, 4))

    def ours(weight, bias, x):
        return dense._Dense.apply(x, weight, bias).sin().sum()

    def theirs(weight, bias, x):
        return linear(x, weight, bias).sin().sum()

    for a, b in zip(torch.vmap(grad(ours, (0, 1, 2)))(weight, bias, x),
                    torch.vmap(grad(theirs, (0, 1, 2)))(weight, bias, x), strict=True):
        same(a, b)


@pytest.mark.parametrize("dead", [0, 2, 5])
def test_the_mean_loss_is_the_cross_entropy_of_live_rows(dead):
    """Its value and slope; a batch without live rows has loss zero and moves nothing."""
    (logits,) = drawn((3, 5, 4))
    y = torch.arange(15).reshape(3, 5) % 4
    live = torch.arange(5).expand(3, 5) < 5 - dead
    value, slope = torch.vmap(loss._MeanLoss.apply)(logits, y, live)
    whole, _ = torch.vmap(lambda z, y: loss._MeanLoss.apply(z, y, None))(logits, y)
    for k in range(3):
        same(whole[k], cross_entropy(logits[k], y[k]))
        kept = logits[k][live[k]]
        expected = cross_entropy(kept, y[k][live[k]]) if dead < 5 else torch.tensor(0.0)
        same(value[k], expected)
        same(mean_loss(logits[k], y[k], live[k]), expected)
        same(slope[k], grad(lambda z, k=k: mean_loss(z, y[k], live[k]))(logits[k]))


def test_sgd_is_two_sums():
    """v <- m v + g, w <- w - lr v."""
    w, v, g = ([leaf, leaf[:1] + 1] for leaf in drawn((2, 3), (2, 3), (2, 3)))
    after, speed = sgd(w, v, g, 0.1, 0.5)
    for k in range(2):
        same(speed[k], g[k] + 0.5 * v[k])
        same(after[k], w[k] - 0.1 * speed[k])
    same(sums(w, v, torch.tensor(2.0))[0], w[0] + 2 * v[0])
    same(sums(w, v, torch.tensor(2.0), -1)[0], w[0] - 2 * v[0])
    same(sums(w, v, 2.0, -1)[0], w[0] - 2 * v[0])
    for one, other in zip(sgd(w, v, g, torch.tensor(0.1), 0.5)[0], after, strict=True):
        same(one, other)


def test_updates_under_vmap_take_one_rate_for_all_clients_or_one_each():
    """The rules of the GPU's operations, on a CPU and without kernels: in float64, which these leave to torch."""
    w, v, g = ([leaf.double(), leaf.double()[:, :1]] for leaf in drawn((2, 3), (2, 3), (2, 3)))
    rate, each = torch.tensor(0.1).double(), torch.tensor([0.1, 0.2]).double()
    for sign in (1, -1):
        for scale, dim in ((0.1, None), (rate, None), (each, 0)):
            moved = torch.vmap(lambda scale, *pairs, sign=sign: updates._Sums.apply(scale, sign, *pairs),
                               (dim, *[0] * 4))(scale, *w, *v)
            by = each[:, None] if dim == 0 else 0.1
            for k in range(2):
                same(moved[k], w[k] + sign * by * v[k])
    for lr in (0.1, rate):
        moved = torch.vmap(lambda *leaves, lr=lr: updates._SGD.apply(lr, 0.5, *leaves))(*w, *v, *g)
        for k in range(2):
            same(moved[k], w[k] - 0.1 * (g[k] + 0.5 * v[k]))


def test_what_is_public():
    """`umbel.ops` promises five names."""
    assert set(umbel.ops.__all__) == {"dense", "mean_loss", "pooled_conv", "sgd", "sums"}
