"""Recorded gradients: the same bits as autograd's, or not used."""

from dataclasses import replace

import pytest
import torch
from test_sequences import KINDS
from test_sequences import rows as fitting

from umbel.nets import tape
from umbel.nets.model import Batch
from umbel.nets.tape import Tapes, record
from umbel.nets.wrap import build, wrap


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """The first call is recorded, the second compared, the third replayed."""
    monkeypatch.setattr(tape, "OFTEN", 1)


def drawn(net, seed, rows=6):
    """Other weights and another batch for every seed."""
    maker = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, *net.shape, generator=maker)
    return net.init(seed), Batch(x, torch.randint(0, net.classes, (rows,), generator=maker))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 8, 8)), ("mlp", (3, 8, 8)), ("lenet5", (1, 28, 28)),
                                             ("lenet5", (3, 32, 32)),
                                             pytest.param("resnet9", (3, 16, 16), marks=pytest.mark.slow)])
def test_a_recorded_gradient_has_the_bits_of_autograd(name, shape, precision):
    """For every model and precision, on weights and rows that were not seen when it was recorded."""
    scaled = build(name, shape, 4, mean=(0.3,), std=(0.5,))
    net = replace(scaled, precision=precision)
    plain = replace(net, recordable=False)
    for seed in range(4):
        params, batch = drawn(net, seed)
        expected, slope = plain.gradient(params, batch), net.gradient(params, batch)
        assert list(slope) == list(params)
        assert all(torch.equal(slope[name], expected[name]) for name in params)
    assert len(net._tapes.trusted) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_tables_series_and_texts_are_recorded_with_the_bits_of_autograd(kind):
    """As images are."""
    net = KINDS[kind]()
    plain = replace(net, recordable=False)
    for seed in range(4):
        params, batch = net.init(seed), Batch(*fitting(net, 6, seed))
        expected, slope = plain.gradient(params, batch), net.gradient(params, batch)
        assert all(torch.equal(slope[name], expected[name]) for name in params)
    assert len(net._tapes.trusted) == 1


def test_every_shape_and_choice_of_parameters_has_its_own_recording():
    """A short last batch and a head alone are other kinds of call."""
    net = build("mlp", (1, 8, 8), 4)
    plain = replace(net, recordable=False)
    for seed in range(3):
        for rows, only in ((6, ()), (2, ()), (6, net.head_names)):
            params, batch = drawn(net, seed, rows)
            expected, slope = plain.gradient(params, batch, only), net.gradient(params, batch, only)
            assert all(torch.equal(slope[name], expected[name]) for name in only or params)
    assert len(net._tapes.trusted) == 3


def test_a_recorded_gradient_leaves_its_inputs_alone():
    """Weights, pixels and labels are read only, and slopes are new memory each time."""
    net = build("lenet5", (3, 32, 32), 4)
    params, batch = drawn(net, 0)
    before = [leaf.clone() for leaf in (*params.values(), batch.x)]
    first, *_, last = [net.gradient(params, batch) for _ in range(5)]
    assert all(torch.equal(a, b) for a, b in zip(before, (*params.values(), batch.x), strict=True))
    assert all(first[name].data_ptr() != last[name].data_ptr() for name in params)


def test_what_python_decides_by_data_is_not_trusted():
    """A function that reads a number is not recorded at all."""
    tapes = Tapes()
    for number in (1.0, 4.0, -1.0, 2.0, 3.0):
        x = torch.tensor([number])
        assert tapes.run("kind", [x], lambda x=x: [x * 2 if x > 0 else x * 3])[0] == number * (2 if number > 0 else 3)
    assert not tapes.trusted
    assert not tapes.trial


def test_a_recording_that_gives_other_numbers_is_thrown_away():
    """What Python changes from call to call, a recording repeats; so it is compared before it is trusted."""
    tapes = Tapes()
    for number in range(4):
        x = torch.ones(1)
        assert tapes.run("kind", [x], lambda x=x, number=number: [x * number])[0] == number
    assert not tapes.trusted
    assert not tapes.trial


def test_a_model_that_has_diverged_is_replayed_all_the_same():
    """NaN equals NaN when recordings are compared."""
    tapes = Tapes()
    for _ in range(3):
        x = torch.tensor([float("nan")])
        assert tapes.run("kind", [x], lambda x=x: [x * 2])[0].isnan()
    assert tapes.trusted


def test_a_recording_holds_what_it_did_not_make():
    """Constants are kept by reference; operations in place and several results are replayed in their order."""
    constant = torch.tensor([10.0, 20.0])

    def function(x):
        high, where = (x + constant).max(0)
        return [high.mul_(2), where]

    seen = torch.tensor([1.0, 2.0])
    _, replay = record(lambda: function(seen), [seen])
    assert [leaf.tolist() for leaf in replay(torch.tensor([30.0, 2.0]))] == [80.0, 0]
    assert [leaf.tolist() for leaf in replay(torch.tensor([0.0, 0.0]))] == [40.0, 1]


def test_only_what_is_declared_recordable_is_recorded():
    """A network of the user's own may decide in Python, so autograd runs it each time; whatever its name is."""
    net = wrap(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)), (1, 2, 2), 2, name="mlp")
    declared = replace(net, recordable=True)
    for seed in range(3):
        net.gradient(*drawn(net, seed))
        declared.gradient(*drawn(net, seed))
    assert not net._tapes.asked
    assert declared._tapes.trusted
