import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d, relu

from umbel.errors import UmbelError
from umbel.nets.model import Batch
from umbel.nets.wrap import build, wrap


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("lenet5", (3, 32, 32), 10, 62_006),
        ("lenet5", (1, 28, 28), 10, 44_426),
        ("lenet5", (1, 16, 16), 10, 44_426),  # padded to 28
        ("resnet9", (3, 32, 32), 100, 6_621_540),
        ("mlp", (1, 28, 28), 10, 159_010),
        ("alexnet", (3, 32, 32), 10, 23_272_266),  # its size is not printed: five convolutions, 1,024 into two of 4,096
    ],
)
def test_sizes_are_the_papers(name, shape, classes, parameters):
    """Parameter counts equal those that the papers' communication figures imply."""
    net = build(name, shape, classes)
    assert net.parameters == parameters
    assert net.logits(net.init(0), torch.zeros(2, *shape)).shape == (2, classes)


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_stream_alone():
    """Initial weights depend on the seed only, and drawing them disturbs nobody."""
    net = build("mlp", (1, 4, 4), 3)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    a, b, c = net.init(7), net.init(7), net.init(8)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(a["1.weight"], b["1.weight"])
    assert not torch.equal(a["1.weight"], c["1.weight"])


def test_both_ways_to_differentiate_agree():
    """autograd for one client and torch.func for many give the same gradient, with and without a mask."""
    net = build("lenet5", (1, 28, 28), 4)
    params, x, y = net.init(0), torch.rand(5, 1, 28, 28), torch.tensor([0, 1, 2, 3, 0])
    plain = net.gradient(params, Batch(x[:3], y[:3]))
    masked = net.vectorised().gradient(params, Batch(x, y, torch.tensor([True, True, True, False, False])))
    for name in params:
        assert torch.allclose(plain[name], masked[name], atol=1e-6)


def test_pooling_before_the_relu_is_pooling_after_it():
    """Values and gradients of LeNet-5 are those of the usual order, to rounding; a tie goes to the first."""
    net = build("lenet5", (3, 32, 32), 10)
    params, x, y = net.init(0), torch.rand(4, 3, 32, 32).mul(4).round(), torch.tensor([0, 1, 2, 3])
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    h = x
    for layer in ("conv1", "conv2"):
        h = max_pool2d(relu(conv2d(h, leaves[f"{layer}.weight"], leaves[f"{layer}.bias"])), 2)
    h = h.flatten(1)
    for layer in ("fc1", "fc2"):
        h = relu(linear(h, leaves[f"{layer}.weight"], leaves[f"{layer}.bias"]))
    cross_entropy(linear(h, leaves["fc3.weight"], leaves["fc3.bias"]), y).backward()
    slope = net.gradient(params, Batch(x, y))
    for name, leaf in leaves.items():
        assert torch.allclose(slope[name], leaf.grad, atol=1e-6), name


def test_a_gradient_leaves_the_parameters_alone():
    """They are lent to a module, not given: no graph hangs on them, and the next ones do not touch them."""
    net = build("mlp", (1, 4, 4), 3)
    a, b, batch = net.init(0), net.init(1), Batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 1]))
    kept = {name: leaf.clone() for name, leaf in a.items()}
    first = net.gradient(a, batch)
    again = {name: leaf.clone() for name, leaf in first.items()}
    net.gradient(b, batch)
    assert all(torch.equal(a[name], kept[name]) and not a[name].requires_grad for name in a)
    assert all(torch.equal(first[name], again[name]) for name in a)


def test_only_some_layers_get_a_gradient():
    """`only` names the layers that learn."""
    net = build("mlp", (1, 4, 4), 3)
    slope = net.gradient(net.init(0), Batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 1])), net.head_names)
    assert set(slope) == {"3.weight", "3.bias"}


def test_features_are_what_enters_the_classifier():
    """logits = features @ head.weight.T + head.bias."""
    net = build("lenet5", (1, 28, 28), 10)
    params, x = net.init(0), torch.rand(2, 1, 28, 28)
    by_hand = net.embed(params, x) @ params["fc3.weight"].T + params["fc3.bias"]
    assert torch.allclose(by_hand, net.logits(params, x), atol=1e-6)


def test_normalisation_is_the_models_first_act():
    """Raw pixels come in; the model scales them."""
    raw, scaled = build("mlp", (1, 4, 4), 3), build("mlp", (1, 4, 4), 3, mean=(0.5,), std=(0.25,))
    params, x = raw.init(0), torch.rand(2, 1, 4, 4)
    assert torch.allclose(scaled.logits(params, x), raw.logits(params, (x - 0.5) / 0.25), atol=1e-6)


def test_an_instance_starts_every_run_from_its_own_weights():
    """A pretrained module is not drawn anew."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    net = wrap(module, (1, 2, 2), 2)
    assert torch.equal(net.init(0)["1.weight"], module[1].weight)
    assert torch.equal(net.init(1)["1.weight"], module[1].weight)


def test_batchnorm_without_running_statistics_is_taken():
    """What has no running statistics has nothing to spoil."""
    layer = nn.BatchNorm2d(1, track_running_stats=False)
    assert wrap(nn.Sequential(layer, nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2), 2).head == "2"


def test_the_head_is_found_or_named():
    """The last linear layer with as many outputs as classes, unless another is named."""
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Linear(2, 2))  # noqa: E731
    assert wrap(make, (1, 2, 2), 2).head == "2"
    assert wrap(make, (1, 2, 2), 2, head="1").head == "1"
    with pytest.raises(UmbelError, match="'7'"):
        wrap(make, (1, 2, 2), 2, head="7")
    with pytest.raises(UmbelError, match="3 outputs"):
        wrap(make, (1, 2, 2), 3)


def test_a_model_that_does_not_fit_its_input_is_refused_at_once():
    """One sentence, not a traceback from inside a round."""
    with pytest.raises(UmbelError, match=r"does not take inputs of shape \(1, 3, 3\)"):
        wrap(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 3, 3), 2)
