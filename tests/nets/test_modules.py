"""BatchNorm, dropout and frozen layers: what is trained, what travels, what a step leaves behind."""

import copy

import pytest
import torch
from helpers import SEED, gap
from networks import SHAPE, Double, ResNet18, eight_clients, resnet18
from torch import nn
from torch.nn.functional import batch_norm, cross_entropy, linear

from umbel import tree
from umbel.algorithms import FedAvg, Local
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation import ledger
from umbel.federation.door import Cohort
from umbel.flower.wire import fingerprint
from umbel.nets.learner import WORD, noise
from umbel.nets.model import Batch
from umbel.nets.standalone import Standalone
from umbel.nets.wrap import wrap

KEY = torch.tensor(0x1234_5678_9ABC_DEF0)


def some(rows: int = 8, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    pool = eight_clients().pool
    return torch.from_numpy(pool.x[:rows]).to(dtype), torch.from_numpy(pool.y[:rows])


def literally(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[dict, dict]:
    """Gradient and buffers after one pass of plain torch in training mode."""
    module = copy.deepcopy(module).train().requires_grad_(True)
    cross_entropy(module(x), y).backward()
    return {name: leaf.grad for name, leaf in module.named_parameters()}, dict(module.named_buffers())


# BatchNorm ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
def test_gradient_and_statistics_are_plain_torchs(many):
    """Of a ResNet-18 in training mode: gradients of all 62 parameters, both statistics of all 20 BatchNorm layers."""
    module = Double(ResNet18())
    net = wrap(module, SHAPE, 3)
    x, y = some(dtype=torch.float64)
    slope, statistics = (net.vectorised() if many else net).gradient_and_statistics(net.init(0), Batch(x, y))
    expected, buffers = literally(module, x, y)
    assert len(slope) == 62
    assert set(statistics) == set(net.statistics)
    assert len(statistics) == 40
    assert gap(slope, expected) < 1e-10
    assert gap(statistics, buffers) < 1e-12
    assert list(net.shapes) == [*expected, *net.statistics]


@pytest.mark.parametrize("live", [8, 5, 2, 1])
def test_padding_changes_nothing(live):
    """Under a mask, gradient and statistics are those of the live rows alone; one row is left to the running ones."""
    net = wrap(lambda: Double(ResNet18()), SHAPE, 3)
    params, (x, y) = net.init(0), some(dtype=torch.float64)
    slope, statistics = net.gradient_and_statistics(params, Batch(x[:live], y[:live]))
    masked, noted = net.vectorised().gradient_and_statistics(params, Batch(x, y, torch.arange(8) < live))
    assert gap(slope, masked) < 1e-7
    assert gap({**tree.part(params, net.statistics), **statistics}, noted) < 1e-12


@pytest.mark.parametrize("many", [False, True])
def test_one_value_a_channel_is_normalised_by_the_running_statistics(many):
    """There is no variance of one number: the layer goes by what it knows, and learns nothing new."""
    net = wrap(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2)), (1, 2, 2), 2)
    params = {**net.init(0), "1.running_mean": torch.arange(4.0), "1.running_var": torch.arange(1.0, 5)}
    x, y = torch.rand(1, 1, 2, 2), torch.tensor([1])
    slope, statistics = (net.vectorised() if many else net).gradient_and_statistics(params, Batch(x, y))
    assert all(torch.equal(leaf, params[name]) for name, leaf in statistics.items())
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items() if name in net.trained}
    h = batch_norm(x.flatten(1), params["1.running_mean"], params["1.running_var"], leaves["1.weight"],
                   leaves["1.bias"])
    cross_entropy(linear(h, leaves["2.weight"], leaves["2.bias"]), y).backward()
    assert gap(slope, {name: leaf.grad for name, leaf in leaves.items()}) < 1e-6


class Twice(nn.Module):
    """One layer, passed two times."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.layer(self.layer(x.flatten(1)) + 1))
        return y


@pytest.mark.parametrize("many", [False, True])
def test_a_layer_that_is_passed_twice_counts_twice(many):
    """Its statistics go on from where the first pass left them, as torch's do."""
    module = Twice(nn.BatchNorm1d(4))
    net = wrap(module, (1, 2, 2), 2)
    x, y = torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 0, 1, 1])
    slope, statistics = (net.vectorised() if many else net).gradient_and_statistics(net.init(0), Batch(x, y))
    expected, buffers = literally(module, x, y)
    assert gap(statistics, buffers) < 1e-6
    assert gap(slope, expected) < 1e-5


def test_without_running_statistics_padding_is_masked_too():
    """A BatchNorm that tracks nothing has no statistics, and sees the live rows alone."""
    net = wrap(lambda: nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(4, 2)),
               (1, 2, 2), 2)
    params, x, y = net.init(0), torch.rand(6, 1, 2, 2), torch.tensor([0, 1, 0, 1, 1, 0])
    assert net.statistics == ()
    plain = net.gradient(params, Batch(x[:4], y[:4]))
    masked, noted = net.vectorised().gradient_and_statistics(params, Batch(x, y, torch.arange(6) < 4))
    assert gap(plain, masked) < 1e-6
    assert noted == {}


def test_tuning_some_layers_leaves_statistics_alone():
    """With `only`, BatchNorm goes by its running statistics, with which the tuned layers will be used."""
    net = resnet18()
    params, (x, y) = net.init(0), some()
    slope, statistics = net.gradient_and_statistics(params, Batch(x, y), net.head_names)
    assert statistics == {}
    features = net.embed(params, x)
    weight, bias = (params[name].clone().requires_grad_() for name in net.head_names)
    cross_entropy(linear(features, weight, bias), y).backward()
    assert gap(slope, {"fc.weight": weight.grad, "fc.bias": bias.grad}) < 1e-5


def test_statistics_of_a_gradient_are_new_tensors():
    """What was given stays as it was."""
    net = resnet18()
    params = net.init(0)
    kept = tree.each(torch.clone, params)
    _, statistics = net.gradient_and_statistics(params, Batch(*some()))
    assert gap(params, kept) == 0
    assert float((statistics["bn1.running_var"] - params["bn1.running_var"]).abs().max()) > 0.01


# Dropout --------------------------------------------------------------------------------------------------------------


def mixed(word: int) -> int:
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        word = (word ^ (word >> shift)) * factor % 2**32
    return word ^ (word >> 15)


def test_noise_is_the_same_everywhere():
    """Whole numbers of any length, one by one, give what tensors give; and masks never change between versions."""
    key, layer = int(KEY), 2
    low, high = mixed(key % 2**32), mixed(((key >> 32) + 0x1E3779B1 * (layer + 1)) % 2**32)
    literal = [[mixed((mixed((3 * row + column) ^ low) + high) % 2**32) for column in range(3)] for row in range(2)]
    assert noise(KEY, layer, torch.Size([2, 3])).tolist() == literal
    assert noise(KEY, 0, torch.Size([3])).tolist() == [4046798637, 2326819853, 2680472481]


def test_noise_is_uniform_and_independent():
    """Mean, spread, every bit; no correlation between rows, columns, layers and steps (bounds of five sigma)."""
    size = torch.Size([400, 500])
    draws = [noise(key, layer, size).double() / WORD
             for key, layer in ((KEY, 0), (KEY, 1), (KEY + 1, 0), (KEY + 2**32, 0), (KEY ^ (1 << 40), 3))]
    for one in draws:
        assert abs(float(one.mean()) - 0.5) < 5 * (1 / 12 / one.numel()) ** 0.5
        assert abs(float(one.var()) - 1 / 12) < 5 * (1 / 180 / one.numel()) ** 0.5
    bits = torch.stack([(noise(KEY, 0, size) >> bit & 1).double().mean() for bit in range(32)])
    assert float((bits - 0.5).abs().max()) < 5 * 0.5 / 200_000**0.5
    pairs = [(draws[i], draws[j]) for i in range(5) for j in range(i)]
    pairs += [(one[1:], one[:-1]) for one in draws] + [(one[:, 1:], one[:, :-1]) for one in draws]
    for a, b in pairs:
        assert abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])) < 5 / a.numel() ** 0.5


def test_steps_of_a_client_have_masks_of_their_own():
    """A hundred keys as a client draws them: every place is dropped about half the time."""
    clients = LoopEngine(resnet18(), eight_clients(), SEED).clients
    keys = torch.from_numpy(clients.keys(0, Cohort(torch.tensor([0]), 3), 400))
    assert len(set(keys.tolist())) == 400
    kept = torch.stack([noise(key, 0, torch.Size([10, 20])) >= WORD // 2 for key in keys]).double()
    assert float((kept.mean(0) - 0.5).abs().max()) < 5 * 0.5 / 400**0.5
    other = torch.from_numpy(clients.keys(0, Cohort(torch.tensor([0]), 4), 400))
    assert not set(keys.tolist()) & set(other.tolist())


def test_a_mask_does_not_see_padding():
    """Rows behind the last one change nothing before them; with or without vmap."""
    net = wrap(lambda: nn.Sequential(nn.Dropout(0.4), nn.Flatten(), nn.Linear(50, 2)), (2, 5, 5), 2)
    params, x, y = net.init(0), torch.rand(6, 2, 5, 5), torch.tensor([0, 1, 0, 1, 1, 0])
    plain = net.gradient(params, Batch(x[:4], y[:4], key=KEY))
    padded = net.vectorised().gradient(params, Batch(x, y, torch.arange(6) < 4, KEY))
    assert gap(plain, padded) < 1e-6
    keys = torch.stack([KEY, KEY + 1])
    many = torch.vmap(lambda key: net.vectorised().gradient(params, Batch(x[:4], y[:4], key=key)))(keys)
    assert gap(plain, tree.take(many, 0)) < 1e-6
    assert gap(plain, tree.take(many, 1)) > 1e-3


def test_dropout_keeps_its_share_and_scales_it_up():
    """nn.Dropout drops single numbers, nn.Dropout2d whole channels; what stays is divided by 1 - p."""
    single = wrap(lambda: nn.Sequential(nn.Dropout(0.25), nn.Flatten(), nn.Linear(32, 2)), (2, 4, 4), 2)
    whole = wrap(lambda: nn.Sequential(nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(32, 2)), (2, 4, 4), 2)
    for net, per_channel in ((single, False), (whole, True)):
        learner = net._learner
        learner.begin(None, KEY, adapt=True)
        out = learner.module[0](torch.ones(2000, 2, 4, 4))
        assert sorted(set(out.flatten().tolist())) == pytest.approx([0, 4 / 3])
        assert abs(float(out.mean()) - 1) < 0.05
        assert bool((out.flatten(2).std(2) == 0).all()) == per_channel


def test_layers_draw_apart_and_the_same_layer_twice_too():
    """Every pass of a dropout layer in a forward pass has its own number."""
    net = wrap(Twice(nn.Dropout(0.5)), (1, 2, 2), 2)
    learner = net._learner
    learner.begin(None, KEY, adapt=True)
    first, second = (learner.module.layer(torch.ones(50, 4)) for _ in range(2))
    assert not torch.equal(first, second)
    learner.begin(None, KEY, adapt=True)
    assert torch.equal(first, learner.module.layer(torch.ones(50, 4)))


def test_nothing_is_dropped_without_a_key_or_outside_training():
    """Logits are those of evaluation mode, and so is a gradient for a batch that has no key."""
    make = lambda p: nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Dropout(p), nn.Linear(8, 2))  # noqa: E731
    net, plain = wrap(lambda: make(0.5), (1, 2, 2), 2), wrap(lambda: make(0.0), (1, 2, 2), 2)
    assert (net.drops, plain.drops) == (True, False)
    params, x, y = net.init(0), torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 1])
    assert torch.equal(net.logits(params, x), plain.logits(params, x))
    assert gap(net.gradient(params, Batch(x, y)), plain.gradient(params, Batch(x, y))) == 0
    assert gap(net.gradient(params, Batch(x, y, key=KEY)), plain.gradient(params, Batch(x, y))) > 1e-3


# Frozen layers --------------------------------------------------------------------------------------------------------


def pretrained() -> nn.Module:
    """A ResNet-18 of which the last block and the classifier learn."""
    torch.manual_seed(3)
    module = ResNet18(4)
    for name, leaf in module.named_parameters():
        leaf.requires_grad_(name.startswith(("layer4.1", "fc")))
    module.bn1.running_mean += 1  # as if it had seen something
    return module


def test_frozen_layers_neither_travel_nor_move():
    """Billed are the trained parameters and their layers' statistics; the rest is as it was given, to take away too."""
    module = pretrained()
    before = copy.deepcopy(module.state_dict())
    net = wrap(module, SHAPE, 3)
    assert all(name.startswith(("layer4.1", "fc")) for name in net.shapes)
    assert net.statistics == tuple(f"layer4.1.bn{k}.running_{what}" for k in (1, 2) for what in ("mean", "var"))
    weights = 2 * 32 * 32 * 9 + 2 * 2 * 32 + 32 * 3 + 3
    assert net.parameters == weights + 2 * 2 * 32
    fed = LoopEngine(net, eight_clients(), SEED)
    algorithm = FedAvg(local=Local(epochs=1, batch=8))
    state = algorithm.round(fed, algorithm.init(fed, SEED), Cohort(torch.tensor([0, 1]), 0))
    moved = ledger.summary(ledger.totals(fed.ledger.lines))
    assert (moved["down"], moved["up"]) == (2 * 4 * net.parameters, 2 * (4 * net.parameters + 8))
    away = Standalone(fed.net, tree.take(state.models, 0)).network
    for name, leaf in away.state_dict().items():
        changed = name in net.shapes
        assert torch.equal(leaf, before[name]) != changed, name
    assert {name for name, leaf in away.named_parameters() if leaf.requires_grad} == set(net.trained)
    x, _ = some()
    assert torch.allclose(Standalone(fed.net, tree.take(state.models, 0))(x),
                          fed.net.logits(tree.take(state.models, 0), x), atol=1e-6)
    assert all(torch.equal(leaf, before[name]) for name, leaf in module.state_dict().items())


@pytest.mark.parametrize("many", [False, True])
def test_a_frozen_batchnorm_goes_by_its_own_statistics(many):
    """As in evaluation, although layers behind it learn."""
    module = Double(pretrained())
    net = wrap(module, SHAPE, 3)
    x, y = some(dtype=torch.float64)
    slope, _ = (net.vectorised() if many else net).gradient_and_statistics(net.init(0), Batch(x, y))
    reference = copy.deepcopy(module).eval()
    reference.inner.layer4[1].train()
    cross_entropy(reference(x), y).backward()
    assert set(slope) == set(net.trained)
    assert gap(slope, {name: leaf.grad for name, leaf in reference.named_parameters() if leaf.grad is not None}) < 1e-9


def test_sites_with_other_frozen_weights_do_not_match():
    """What does not travel is part of a model's fingerprint; what is trained counts by its shape."""
    module = pretrained()
    own = fingerprint(wrap(module, SHAPE, 3))
    with torch.no_grad():
        module.fc.weight += 1
    assert fingerprint(wrap(module, SHAPE, 3)) == own
    with torch.no_grad():
        module.conv1.weight[0, 0, 0, 0] += 1
    assert fingerprint(wrap(module, SHAPE, 3)) != own
    module.requires_grad_(True)
    assert fingerprint(wrap(module, SHAPE, 3)) != own


def test_a_frozen_classifier_is_not_tuned():
    """Asked for by name, it is refused; a signature that only reads it is not."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2))
    module[2].requires_grad_(False)
    net = wrap(module, (1, 2, 2), 2)
    with pytest.raises(UmbelError, match=r"classifier '2' of the model 'own' must be trained here, and it is frozen"):
        net.head_names  # noqa: B018
    params, x = net.init(0), torch.rand(2, 1, 2, 2)
    assert torch.equal(net.classify(params, net.embed(params, x)), net.logits(params, x))


@pytest.mark.parametrize(("layer", "sentence"), [
    (nn.BatchNorm1d(4, momentum=None), "momentum=None"),
    (nn.InstanceNorm1d(4, track_running_stats=True), "running statistics of an InstanceNorm in 1"),
    (nn.AlphaDropout(0.1), "take nn.Dropout instead"),
    (nn.FeatureAlphaDropout(0.1), "take nn.Dropout instead"),
    (nn.SyncBatchNorm(4), "forward of its own"),
])
def test_what_is_no_pure_function_of_a_batch_is_refused(layer, sentence):
    """In one sentence that names the layer and what to take."""
    with pytest.raises(UmbelError, match=sentence):
        wrap(nn.Sequential(nn.Flatten(), layer, nn.Linear(4, 2)), (1, 2, 2), 2)


def test_a_model_with_nothing_to_train_is_refused():
    """All frozen: no method could do anything with it."""
    with pytest.raises(UmbelError, match="must have something to train"):
        wrap(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).requires_grad_(False), (1, 2, 2), 2)
