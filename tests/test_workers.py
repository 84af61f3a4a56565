"""Worker processes on a CPU: the same bits, whoever does the work."""

import numpy as np
import pytest
import torch
from helpers import LOCAL, SEED, TRUTH, gap, play, tiny_model, tiny_population

from umbel import models, tree
from umbel.algorithms import FedAvg, FedProx, Oracle, Solo
from umbel.engines import Simulator, simulator


def engine(workers, net=None):
    """One client at a time, however small the model is."""
    made = Simulator(net or models.build("mlp", (1, 3, 3), 3), tiny_population(), SEED, vectorise=False)
    made.workers = workers
    return made


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch):
    monkeypatch.setattr(simulator, "WORTH", 0.0)


@pytest.mark.parametrize("method", [FedAvg(LOCAL), FedProx(0.1, LOCAL), Solo(LOCAL), Oracle(TRUTH, LOCAL)],
                         ids=lambda method: type(method).__name__)
def test_workers_change_no_bit(method):
    """Models, labels and what clients remember are the same for one process and for two workers."""
    alone, shared = engine(1), engine(2)
    a, b = play(method, alone), play(method, shared)
    assert shared.crews
    assert not alone.crews
    assert torch.equal(tree.flat(a.models), tree.flat(b.models))
    mine, theirs = alone.memory()[0], shared.memory()[0]
    assert all(gap(mine[name]["last"], theirs[name]["last"]) == 0 for name in mine)
    shared.close()


def test_workers_end_with_their_engine():
    """Processes and the folder that told them about the clients are gone."""
    fed = engine(2)
    play(FedAvg(LOCAL), fed, rounds=1)
    crew = fed.crews[0]
    processes = [crew.idle.get() for _ in range(2)]
    fed.close()
    assert all(process.poll() is not None for process in processes)
    assert not crew.folder.exists()
    play(FedAvg(LOCAL), fed, rounds=1)  # and a new crew comes when there is work again
    assert fed.crews[0] is not crew
    fed.close()


def test_a_worker_that_dies_is_told():
    """A killed worker is an error, not a wait for ever."""
    fed = engine(1 + 1)
    play(FedAvg(LOCAL), fed, rounds=1)
    for process in [fed.crews[0].idle.get() for _ in range(2)]:
        process.kill()
        process.wait()
        fed.crews[0].idle.put(process)
    with pytest.raises((RuntimeError, BrokenPipeError)):
        play(FedAvg(LOCAL), fed, rounds=1)


def test_what_has_no_name_stays_at_home():
    """A model that another process could not build is trained in this one."""
    fed = engine(2, tiny_model())
    play(FedAvg(LOCAL), fed, rounds=1)
    assert not fed.crews


def test_small_work_starts_no_process(monkeypatch):
    """Starting workers costs seconds: it must pay."""
    monkeypatch.setattr(simulator, "WORTH", 5.0)
    fed = engine(2)
    play(FedAvg(LOCAL), fed, rounds=1)
    assert not fed.crews
    assert np.isfinite(fed.seconds["train"])
