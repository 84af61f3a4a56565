"""Optimisers are torch's own, step by step, for one client in place and for many under vmap."""

import pytest
import torch

from umbel import tree
from umbel.errors import UmbelError
from umbel.nets.optimiser import SGD, Adam, AdamW, optimiser_of

SHAPES = {"a": (3, 4), "b": (4,), "c": ()}
LR = 0.05
WALKS = {
    "sgd": (SGD(), torch.optim.SGD, {}),
    "momentum": (SGD(0.9), torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (SGD(0.9, nesterov=True), torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "decayed": (SGD(0.5, weight_decay=0.1), torch.optim.SGD, {"momentum": 0.5, "weight_decay": 0.1}),
    "plain, decayed": (SGD(weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    "all of it": (SGD(0.9, True, 0.1), torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "adam": (Adam(), torch.optim.Adam, {}),
    "adam, decayed": (Adam(0.1), torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (AdamW(0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
}
walks = pytest.mark.parametrize("name", WALKS)


def drawn(seed):
    maker = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=maker) for name, shape in SHAPES.items()}


def theirs(name, seed, rates):
    """The parameters after these steps of torch's optimiser, whose slopes are drawn; and those slopes."""
    _, kind, settings = WALKS[name]
    params = tree.each(torch.clone, drawn(seed))
    optimiser = kind(params.values(), lr=LR, **settings)
    for step, rate in enumerate(rates):
        for group in optimiser.param_groups:
            group["lr"] = rate
        for leaf, slope in zip(params.values(), drawn(100 * seed + step + 1).values(), strict=True):
            leaf.grad = slope
        optimiser.step()
    return params


def slopes(seed, step):
    return drawn(100 * seed + step + 1)


@walks
def test_twenty_steps_are_torchs(name):
    """To 1e-6, at rates that change: pure, written over, with the rate as a tensor, and many clients under vmap."""
    rates = [LR * (20 - step) / 20 for step in range(20)]
    ours, seeds = WALKS[name][0], (1, 2, 3)
    expected = tree.stack([theirs(name, seed, rates) for seed in seeds])
    one, here = drawn(1), drawn(1)
    many = tree.stack([drawn(seed) for seed in seeds])
    slots, own, stacked = ours.begin(one), ours.begin(here), torch.vmap(ours.begin)(many)
    for step, rate in enumerate(rates):
        one, slots = ours.update(one, slopes(1, step), slots, rate)
        ours.update_here(here, slopes(1, step), own, rate)
        moving = torch.tensor(rate)

        def walk(params, slope, slots, moving=moving):
            return ours.update(params, slope, slots, moving)

        many, stacked = torch.vmap(walk)(many, tree.stack([slopes(seed, step) for seed in seeds]), stacked)
    for leaf in SHAPES:
        assert torch.allclose(one[leaf], expected[leaf][0], rtol=1e-6, atol=1e-6)
        assert torch.allclose(here[leaf], expected[leaf][0], rtol=1e-6, atol=1e-6)
        assert torch.allclose(many[leaf], expected[leaf], rtol=1e-6, atol=1e-6)
    assert {name: type(part) for name, part in slots.items()} == {name: type(part) for name, part in own.items()}


@pytest.mark.parametrize("ours", [SGD(), SGD(0.5), SGD(0.5, True, 0.1)])
def test_sgd_in_place_has_the_bits_of_sgd(ours):
    """One way for one client, one for many: engines on a CPU agree to the last bit."""
    params, here = drawn(1), drawn(1)
    slots, own = ours.begin(params), ours.begin(here)
    for step in range(5):
        params, slots = ours.update(params, slopes(1, step), slots, LR)
        ours.update_here(here, slopes(1, step), own, LR)
    assert all(torch.equal(params[name], here[name]) for name in SHAPES)


def test_momentum_by_hand():
    """w = 1, g = 1, lr 0.1, momentum 0.5: v = 1, then 1.5; w = 0.9, then 0.75. Nesterov: 0.85, then 0.675."""
    for ours, ways in ((SGD(0.5), (0.9, 0.75)), (SGD(0.5, nesterov=True), (0.85, 0.675))):
        params, slope = {"w": torch.tensor([1.0])}, {"w": torch.tensor([1.0])}
        slots = ours.begin(params)
        for way in ways:
            params, slots = ours.update(params, slope, slots, 0.1)
            assert params["w"].item() == pytest.approx(way, abs=1e-7)


@walks
def test_only_what_has_a_slope_walks(name):
    """Entries that are not trained stay, and slots keep their names: the carry of a step has one shape."""
    ours, slope = WALKS[name][0], {"b": torch.ones(4)}
    params, here = drawn(1), drawn(1)
    slots, own = ours.begin(params), ours.begin(here)
    after, moved = ours.update(params, slope, slots, LR)
    ours.update_here(here, slope, own, LR)
    for walked in (after, here):
        assert torch.equal(walked["a"], drawn(1)["a"])
        assert torch.equal(walked["c"], drawn(1)["c"])
        assert not torch.equal(walked["b"], drawn(1)["b"])
    assert tree.named(moved).keys() == tree.named(slots).keys()


@walks
def test_an_update_leaves_its_arguments_alone(name):
    """On a CPU the pure way is pure."""
    ours, params, slope = WALKS[name][0], drawn(1), drawn(2)
    slots = ours.begin(params)
    ours.update(params, slope, slots, LR)
    for leaf in SHAPES:
        assert torch.equal(params[leaf], drawn(1)[leaf])
        assert torch.equal(slope[leaf], drawn(2)[leaf])
    assert all(not leaf.any() for leaf in tree.named(slots).values())


def test_flat_options_name_an_optimiser():
    """Others of a task's options are not its own; a name that there is not is refused with the near spelling."""
    assert optimiser_of() == SGD()
    assert optimiser_of(lr=0.1, momentum=0.9, nesterov=True, only=("a",)) == SGD(0.9, nesterov=True)
    assert optimiser_of(optimiser="adam", lr=0.1) == Adam()
    assert optimiser_of(optimiser="adamw", weight_decay=0.1) == AdamW(0.1)
    assert AdamW(0.1) != Adam(0.1)
    with pytest.raises(UmbelError, match=r"There is no optimiser 'adamm'. Did you mean 'adam'\?"):
        optimiser_of(optimiser="adamm")
