"""Training side by side: the work done, and what cannot be done."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import LOCAL, SEED, play, tiny_model, tiny_population, vectorised
from torch import nn

from umbel import tree
from umbel.algorithms import FedAvg
from umbel.data.clients import Work, batches
from umbel.engines.steps import Recorded, Steps, widths
from umbel.errors import UmbelError
from umbel.federation.training import train
from umbel.nets.wrap import wrap


def test_widths_of_twenty():
    """Nine widths serve a cohort of twenty."""
    assert widths(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]
    assert widths(1) == [1]
    assert widths(100)[-1] == 100


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_unequal_clients_waste_little(alpha, seed):
    """Under Dirichlet(0.25) amounts, the steps computed are at most 1.5 times the real ones."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(5, 60_000 * rng.dirichlet([alpha] * 100)).astype(int)[:20]
    lengths = sorted((-(-size // 10) for size in sizes), reverse=True)
    known, work = widths(20), 0
    for turn in range(lengths[0]):
        going = sum(length > turn for length in lengths)
        work += next(width for width in known if width >= going)
    assert work <= 1.5 * sum(lengths)


def test_batches_are_an_array():
    """Each epoch is a permutation; its last batch ends in -1; a number of steps cuts the epochs."""
    rows = np.arange(7)
    drawn = batches(rows, Work(epochs=2, batch=3), np.random.default_rng(0))
    assert drawn.shape == (6, 3)
    for epoch in drawn.reshape(2, 9):
        assert sorted(epoch[:7]) == rows.tolist()
        assert (epoch[7:] == -1).all()
    assert batches(rows, Work(steps=4, batch=3), np.random.default_rng(0)).tolist() == drawn[:4].tolist()
    assert batches(rows, Work(epochs=2, batch=0), np.random.default_rng(0)).shape == (2, 7)
    assert batches(rows[:0], Work(epochs=2, batch=3), np.random.default_rng(0)).shape == (0, 3)


def test_a_schedule_names_rows_even_behind_a_clients_end(monkeypatch):
    """Of whole batches alone and unequal clients, too: a GPU trains finished clients on, and there is no row -1."""
    people = tiny_population()
    people = replace(people, train=[rows[: 10 if k in (1, 3) else 5] for k, rows in enumerate(people.train)])
    loaded = []
    plain = Steps.load
    monkeypatch.setattr(Steps, "load", lambda self, *given: (loaded.append(given[2:]), plain(self, *given)))
    play(FedAvg(local=LOCAL), vectorised(tiny_model(), people, SEED), rounds=1)
    (rows, beside, changing), = loaded
    assert changing == {"lr": LOCAL.lr}
    assert beside == {}  # every batch of five is whole, and nothing is dropped
    assert rows.shape == (4, 6, 5)
    assert int(rows.min()) >= 0


def test_a_rate_is_no_part_of_a_graphs_key():
    """A schedule records nothing anew: the rate lies in a buffer that `load` writes; other options are the key."""
    fed = vectorised(tiny_model(), tiny_population(), SEED)
    carry = {"model": tree.stack([fed.net.init(0)] * 2), "velocity": tree.zeros_like(tree.stack([fed.net.init(0)] * 2))}
    rows = torch.zeros(1, 2, 5, dtype=torch.long)
    fed.device, fed.graph_memory = SimpleNamespace(type="cuda"), None

    def asked(lr, momentum=0.5):
        steps = fed._steps(train, {"lr": lr, "momentum": momentum}, {"lr": lr}, carry, {}, rows, {})
        steps.load(carry, {}, rows, {}, {"lr": lr})
        return steps

    first, second = asked(0.1), asked(0.05)
    assert isinstance(first, Recorded)
    assert first is second
    assert asked(0.1, momentum=0.9) is not first
    batch = fed.clients.gather(rows[0])
    for lr in (0.1, 0.05):
        first.load(carry, {}, rows, {}, {"lr": lr})
        plain = Steps(fed.clients.gather, first.stepper)
        plain.load(carry, {}, rows, {}, {"lr": lr})
        read, given = (steps.step(carry, {}, *batch, {})["model"] for steps in (first, plain))
        assert float(first.changing["lr"]) == pytest.approx(lr)
        assert max(float((read[name] - given[name]).abs().max()) for name in read) <= 1e-7


class Moody(nn.Module):
    """Looks at its data before it decides what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(x.flatten(1) if x.sum() > 0 else -x.flatten(1))
        return y


def test_a_gpu_that_fails_is_not_called_a_model_that_cannot_be_vectorised(monkeypatch):
    """The advice is to start again, not to take another engine."""
    fed = vectorised(tiny_model(), tiny_population(), SEED)

    def fail(*_):
        raise RuntimeError("CUDA error: device-side assert triggered\nmore lines")

    monkeypatch.setattr(fed, "_train_chunk", fail)
    with pytest.raises(UmbelError, match=r"The GPU failed while it trained 6 clients.*--resume or with --device cpu"):
        play(FedAvg(local=LOCAL), fed)


def test_a_model_that_cannot_be_vectorised_is_refused():
    """One sentence that names the model and the loop engine; no silent way out."""
    fed = vectorised(wrap(Moody, (1, 3, 3), 3, name="moody"), tiny_population(), SEED)
    with pytest.raises(UmbelError, match=r"'moody' cannot be vectorised over clients.*--engine loop"):
        play(FedAvg(local=LOCAL), fed)
